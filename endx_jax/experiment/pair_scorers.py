"""Scorers of question-answer pairs, for re-ranking, mining and distillation: runs, and models of other libraries."""

import functools
import os

import jax

from endx_jax.buckets import local_copy, url_of
from endx_jax.errors import EndxError
from endx_jax.experiment.model_files import best_params, read_model
from endx_jax.experiment.workdir import NOT_COPIED, read_config
from endx_jax.inference import load
from endx_jax.inference.manifest import embeds
from endx_jax.methods import find_method
from endx_jax.models.token_embeddings import TOKENS
from endx_jax.parallel.console import showing_progress
from endx_jax.parallel.mesh import MeshSettings, make_mesh
from endx_jax.pretrained.locate import locate
from endx_jax.pretrained.sentence_transformers import embeds_tokens
from endx_jax.ranking.mining import SimilaritiesOfTexts
from endx_jax.ranking.rerank import PairScorerFactory


def load_pair_scorer(name: str | os.PathLike, *, embeddings: bool = False) -> PairScorerFactory:
    """Loads a scorer of pairs: a run whose method scores pairs or embeds every token, or a foreign reranker.

    Args:
      name: workdir, or folder of a cross-encoder, of late interaction or of another foreign reranker; with `embeddings`
        also what `load` takes.
      embeddings: true to score by inner products if the model embeds texts, as for mining and distillation.

    Returns:
      A function of Q questions and N answers to the function that scores their pairs, given by rows: see
      `ranking.rerank`.

    Raises:
      EndxError: there is no such model, it embeds texts and `embeddings` is false, or its checkpoint is missing or
        damaged.
    """
    from endx_jax.methods.pair.cross_encoder import load_cross_encoder
    from endx_jax.methods.pair.reranker import load_reranker

    folder = local_copy(name, skip=NOT_COPIED)
    if embeddings and not folder.is_dir():
        folder = locate(str(name))
    if foreign := load_cross_encoder(folder) or load_reranker(folder):
        return foreign
    embedding = embeds_tokens(folder) or (embeddings and embeds(folder))
    settings = None if embedding else read_config(folder)
    if settings is None or settings.model.pooling == TOKENS:
        loaded = load(name)
        return SimilaritiesOfTexts(loaded.ranked, loaded.by_token, loaded.encoder.processors)
    method = find_method(settings.objective.name)
    if method.pair_scorer is None:
        raise EndxError(
            f"{name} holds a run of objective.name={method.name}: rerank needs a pair classifier, a run of "
            "objective.name=pair, or late interaction"
        )
    model, mesh = read_model(folder), make_mesh(MeshSettings(), jax.local_devices())
    params, _ = best_params(name if url_of(name) else folder, model, mesh)
    scorer = method.pair_scorer(model.objective, model.processors, mesh, model.settings.evaluation.batch_size)
    return functools.partial(scorer, params, progress=showing_progress())
