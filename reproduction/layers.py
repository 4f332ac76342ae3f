"""Retrieval by the mean-pooled token vectors of each layer of a model (RR, section 3.1)."""

import dataclasses
import itertools
import math
import pathlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np

from endx_jax.batch import Tokens
from endx_jax.data.idf import idf_of_sides
from endx_jax.data.records import RetrievalSet, pad_ids
from endx_jax.data.token_tables import content_key
from endx_jax.data.tokenization import TextProcessor
from endx_jax.errors import EndxError
from endx_jax.export.towers import Towers
from endx_jax.files import write_text
from endx_jax.inference import load
from endx_jax.inference.encode import TextEncoder
from endx_jax.inference.identity import model_identity
from endx_jax.models.dual_encoder import SIDES, DualEncoder
from endx_jax.models.pooling import mean
from endx_jax.models.static import TokenWeights
from endx_jax.models.tower import Tower
from endx_jax.numerics import l2_normalize, unit_rows
from endx_jax.parallel.console import showing_progress
from endx_jax.parallel.mesh import MeshSettings, make_mesh
from endx_jax.pretrained.static import split_words
from endx_jax.retrieval.evaluate import Evaluation, PrecisionRecall, evaluate, precision_recall
from endx_jax.retrieval.systems import dense_scores
from endx_jax.retrieval.vector_cache import VectorCache, encode_once
from reproduction.token_vectors import is_token_vectors, read_token_vectors

Array = jax.Array

TOKEN_TABLE = "token table"
# The places of unweighted and of IDF-weighted vectors in pooled layers.
PLAIN, IDF = 0, 1


@dataclasses.dataclass(frozen=True, eq=False)
class PooledLayers:
    """Questions and candidates of a set, each text pooled in every layer without and with IDF.

    Attributes:
      questions: float32 [Q, 2, K, W]; may be mapped from a file.
      candidates: float32 [N, 2, K, W].
      qrels: for each question the indices of its right candidates.
    """

    questions: np.ndarray
    candidates: np.ndarray
    qrels: Sequence[Sequence[int]]

    def embeddings(self, weights: Sequence[float], weighting: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns unit vectors of a mixture of layers: float32 [Q, W] and [N, W]."""
        return _mixed(self.questions, weights, weighting), _mixed(self.candidates, weights, weighting)

    def evaluate(self, weights: Sequence[float], weighting: int) -> tuple[Evaluation, PrecisionRecall]:
        """Ranks the candidates by the cosine of a mixture of layers."""
        scores, candidates = dense_scores(*self.embeddings(weights, weighting)), len(self.candidates)
        curve = precision_recall(scores, self.qrels, candidates=candidates)
        return evaluate(scores, self.qrels, candidates=candidates), curve


def layer_names(tower: Tower) -> tuple[str, ...]:
    """Returns the names of a tower's K layers, in the order of `Tower.layers` and `model.layer_weights`.

    Raises:
      EndxError: its encoder does not return its layers.
    """
    outputs = getattr(tower.encoder, "outputs", None)
    if outputs is None:
        raise EndxError(f"{type(tower.encoder).__name__} gives no layers, as BERT, T5 and static vectors do")
    return (TOKEN_TABLE, *outputs)


def pool_layers(model: DualEncoder, params: dict, side: str, tokens: Tokens) -> Array:
    """Pools every layer of one side's tower by the mean, without and with the tower's token weights.

    Args:
      model: both towers, with `token_weights`.
      params: parameters of the towers.
      side: `question` or `answer`.
      tokens: [B, L].

    Returns:
      float32 [B, 2, K, W].
    """
    tower, groups = model.tower(side), model.tower_params(params, side)
    weights = groups["token_weights"]["weight"][tokens.ids][..., None]
    layers = cast(list[Array], tower.apply({"params": groups}, tokens, method=tower.layers))
    return jnp.stack(
        [
            jnp.stack([mean(layer, tokens.mask) for layer in layers], axis=1),
            jnp.stack([mean(layer * weights, tokens.mask) for layer in layers], axis=1),
        ],
        axis=1,
    )


def mixtures(layers: int, parts: int) -> Iterator[tuple[float, ...]]:
    """Yields every way to divide `parts` equal parts of one among K layers: (K + parts - 1)! / (parts! (K - 1)!)."""
    for bars in itertools.combinations(range(layers + parts - 1), layers - 1):
        edges = (-1, *bars, layers + parts - 1)
        yield tuple((after - before - 1) / parts for before, after in itertools.pairwise(edges))


def best_mixture(pooled: PooledLayers, weighting: int, parts: int) -> tuple[tuple[float, ...], float]:
    """Returns the mixture with the highest recall@1, the first of equals, and that recall.

    Args:
      pooled: pooled layers of held-out questions.
      weighting: `PLAIN` or `IDF`.
      parts: number of equal parts of the weights: see `mixtures`.
    """
    right = pad_ids(pooled.qrels)
    texts = [jnp.asarray(part[:, weighting]) for part in (pooled.questions, pooled.candidates)]
    choices = mixtures(texts[0].shape[1], parts)
    hits = {weights: _hits(*texts, right, np.asarray(weights, np.float32)) for weights in choices}
    best = max(hits, key=lambda weights: float(hits[weights]))
    return best, float(hits[best])


@jax.jit
def _hits(questions: Array, candidates: Array, right: Array, weights: Array) -> Array:
    """Returns the share of questions whose best candidate is right."""
    questions, candidates = (l2_normalize(jnp.einsum("nkw,k->nw", x, weights)) for x in (questions, candidates))

    def first(question):
        return jnp.argmax(jnp.matmul(candidates, question, precision=jax.lax.Precision.HIGHEST))

    best = jax.lax.map(first, questions, batch_size=256)
    return jnp.mean(jnp.any(right == best[:, None], axis=1))


def _mixed(pooled: np.ndarray, weights: Sequence[float], weighting: int) -> np.ndarray:
    # A layer at a time: the whole may be mapped from a file that is larger than memory.
    kept = [(weight, layer) for layer, weight in enumerate(weights) if weight]
    return unit_rows(np.sum([np.float32(weight) * pooled[:, weighting, layer] for weight, layer in kept], axis=0))


def pool_model(
    dual_encoder: DualEncoder,
    params: dict,
    processors: Mapping[str, TextProcessor],
    sets: Mapping[str, RetrievalSet],
    cache: VectorCache,
) -> tuple[tuple[str, ...], dict[str, PooledLayers]]:
    """Pools the texts of each set in every layer, without and with the IDFs of the set's own texts.

    Args:
      dual_encoder: both towers, without scan.
      params: parameters of the towers.
      processors: text processors of each side.
      sets: sets by name.
      cache: cache of the vectors.

    Returns:
      The layers' names, and the pooled layers of each set.

    Raises:
      EndxError: the model's encoder does not return its layers, or has fewer positions.
    """
    names = layer_names(dual_encoder.question)
    towers = {side: _weighted(dual_encoder.tower(side)) for side in SIDES}
    sizes = {side: tower.token_embedder.vocab_size for side, tower in towers.items()}
    shape = (2, len(names), towers["question"].token_embedder.width)
    model = dataclasses.replace(dual_encoder, **towers)
    mesh = make_mesh(MeshSettings(), jax.local_devices())
    encoder = TextEncoder(model, processors, mesh, part=lambda *given: pool_layers(model, *given))
    pooled = {}
    for part, records in sets.items():
        texts = {"question": records.questions, "answer": records.candidates}
        idf = idf_of_sides(texts, processors, sizes)
        own = {
            side: dual_encoder.tower_params(params, side) | {"token_weights": {"weight": idf[side]}} for side in SIDES
        }
        identity = model_identity(model, own, processors)
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
    """Returns the tower without its head and its mixture of layers, with token weights."""
    return tower.clone(token_weights=TokenWeights(tower.token_embedder.vocab_size), head=None, layer_weights=None)


def write_texts(path: pathlib.Path, sets: Mapping[str, RetrievalSet]) -> int:
    """Writes texts for the computation of token vectors, one per line: for each set its questions, then its candidates.

    Tokens are words and punctuation marks separated by spaces, as AllenNLP's `elmo` command expects them.

    Returns:
      The number of texts.
    """
    lines = [" ".join(words) for words in _words(sets)]
    write_text(path, "".join(f"{line}\n" for line in lines))
    return len(lines)


def pool_file(path: pathlib.Path, sets: Mapping[str, RetrievalSet]) -> tuple[tuple[str, ...], dict[str, PooledLayers]]:
    """Pools the token vectors in a file, without and with the IDFs of each set's own words.

    Args:
      path: a file for `pretrained.token_vectors`, made from the output of `write_texts` for these sets.
      sets: sets by name.

    Returns:
      The layers' names, and the pooled layers of each set.

    Raises:
      EndxError: the file can't be read, or was made from other texts.
    """
    texts = _words(sets)
    vectors = zip(texts, read_token_vectors(path, [len(words) for words in texts]), strict=True)
    pooled = {}
    for part, records in sets.items():
        counts = len(records.questions), len(records.candidates)
        own = [*itertools.islice(vectors, sum(counts))]
        frequencies = Counter(word for words, _ in own for word in set(words))
        idf = {word: math.log(len(own) / count) for word, count in frequencies.items()}
        means = np.stack([_means(layers, [idf[word] for word in words]) for words, layers in own])
        pooled[part] = PooledLayers(means[: counts[0]], means[counts[0] :], records.qrels)
    layers = means.shape[2]
    return tuple(f"layer {n}" for n in range(layers)), pooled


def _words(sets: Mapping[str, RetrievalSet]) -> list[list[str]]:
    return [split_words(text) for records in sets.values() for text in (*records.questions, *records.candidates)]


def _means(layers: np.ndarray, weights: Sequence[float]) -> np.ndarray:
    """Averages layers [K, T, W] over tokens, without and with weights: [2, K, W]."""
    both = np.stack([np.ones(len(weights), np.float32), np.array(weights, np.float32)])
    return np.einsum("st,ktw->skw", both, layers) / max(len(weights), 1)


def pooled_layers(
    model: str, sets: Mapping[str, RetrievalSet], *, cache: str
) -> tuple[tuple[str, ...], dict[str, PooledLayers]]:
    """Returns the names of the layers, and the texts of each set pooled in each layer.

    Args:
      model: a pretrained folder or name, a file of word vectors, the workdir of a run, or a file of token vectors.
      sets: sets by name.
      cache: folder for the pooled vectors; empty: none.
    """
    file = pathlib.Path(model).expanduser()
    if is_token_vectors(file):
        return pool_file(file, sets)
    towers = Towers.of(load(model))
    return pool_model(towers.dual_encoder, towers.params, towers.processors, sets, VectorCache(cache))
