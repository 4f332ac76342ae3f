"""The layers of a model, pooled over the texts of retrieval sets: computed once and kept."""

import dataclasses
from collections.abc import Mapping

import jax

from endx_jax.data.idf import idf_of_sides
from endx_jax.data.records import RetrievalSet
from endx_jax.data.token_cache import content_key
from endx_jax.data.tokenization import Preparation
from endx_jax.experiment.console import showing_progress
from endx_jax.models.dual_encoder import SIDES, DualEncoder
from endx_jax.models.static import TokenWeights
from endx_jax.parallel.mesh import MeshSettings, make_mesh
from endx_jax.retrieval.encode import TextEncoder
from endx_jax.retrieval.frozen import encode_once
from endx_jax.retrieval.identity import model_identity
from endx_jax.retrieval.layers import PooledLayers, layer_names, pool_layers
from endx_jax.retrieval.vector_cache import VectorCache


def pool_model(
    dual_encoder: DualEncoder,
    params: dict,
    preparations: Mapping[str, Preparation],
    sets: Mapping[str, RetrievalSet],
    cache: VectorCache | None,
    *,
    length: int | None = None,
) -> tuple[tuple[str, ...], dict[str, PooledLayers]]:
    """Pools the texts of each set in every layer, without and with the IDFs of the set's own texts.

    Args:
      dual_encoder: both towers, without scan.
      params: theirs.
      preparations: how the texts of each side become tokens.
      sets: by name.
      cache: where the vectors are kept for the next time; None to compute them.
      length: tokens a text is cut to; None: as the preparations say.

    Returns:
      The layers' names, and the pooled layers of each set.

    Raises:
      EndxError: when the model's encoder does not give its layers, or has not so many positions.
    """
    names = layer_names(dual_encoder.question)
    if length is not None:
        preparations = {side: dataclasses.replace(preparations[side], length=length) for side in SIDES}
    towers = {side: _weighted(dual_encoder.tower(side)) for side in SIDES}
    sizes = {side: tower.token_embedder.vocab_size for side, tower in towers.items()}
    shape = (2, len(names), towers["question"].token_embedder.width)
    model = dataclasses.replace(dual_encoder, **towers)
    mesh = make_mesh(MeshSettings(), jax.local_devices())
    encoder = TextEncoder(model, preparations, mesh, part=lambda *given: pool_layers(model, *given))
    pooled = {}
    for part, records in sets.items():
        texts = {"question": records.questions, "answer": records.candidates}
        idf = idf_of_sides(texts, preparations, sizes)
        own = {
            side: dual_encoder.tower_params(params, side) | {"token_weights": {"weight": idf[side]}} for side in SIDES
        }
        identity = model_identity(model, own, preparations)
        vectors = {
            side: encode_once(
                encoder,
                own,
                side,
                texts[side],
                content_key(texts[side], "layers", side, identity),
                cache,
                shape,
                progress=showing_progress(),
            )
            for side in SIDES
        }
        pooled[part] = PooledLayers(vectors["question"], vectors["answer"], records.qrels)
    return names, pooled


def _weighted(tower):
    """The tower below its head and its mixture of layers, with token weights."""
    return tower.clone(token_weights=TokenWeights(tower.token_embedder.vocab_size), head=None, layer_weights=None)
