"""Retrieval by the token vectors of each layer of a model, pooled by the mean (RR, section 3.1, Tables 2 to 8).

For a text with token vectors T_j of layer j, a mixture W of layers retrieves by the unit vector of the mean over tokens
of sum_j W_j T_j, where the W_j sum to one. As the mean is linear it is enough to pool each layer once: a mixture of
layers pools to the mixture of what they pool to.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np

from endx_jax.batch import Tokens
from endx_jax.data.records import pad_ids
from endx_jax.errors import EndxError
from endx_jax.models.dual_encoder import DualEncoder
from endx_jax.models.pooling import mean
from endx_jax.models.tower import Tower
from endx_jax.numerics import l2_normalize, unit_rows
from endx_jax.retrieval.dense import dense_scores
from endx_jax.retrieval.evaluate import Evaluation, evaluate
from endx_jax.retrieval.precision_recall import PrecisionRecall, precision_recall

Array = jax.Array

TOKEN_TABLE = "token table"
# The places of unweighted and of IDF-weighted vectors in pooled layers.
PLAIN, IDF = 0, 1


@dataclasses.dataclass(frozen=True, eq=False)
class PooledLayers:
    """A set's questions and candidates, each text pooled in every layer without and with IDF.

    Attributes:
      questions: float32 [Q, 2, K, W]; may be mapped from a file.
      candidates: float32 [N, 2, K, W].
      qrels: for each question the indices of its right candidates.
    """

    questions: np.ndarray
    candidates: np.ndarray
    qrels: Sequence[Sequence[int]]

    def embeddings(self, weights: Sequence[float], weighting: int) -> tuple[np.ndarray, np.ndarray]:
        """Unit vectors of a mixture of layers: float32 [Q, W] and [N, W]."""
        return _mixed(self.questions, weights, weighting), _mixed(self.candidates, weights, weighting)

    def evaluate(self, weights: Sequence[float], weighting: int) -> tuple[Evaluation, PrecisionRecall]:
        """Ranks the candidates by the cosine of a mixture of layers."""
        scores, candidates = dense_scores(*self.embeddings(weights, weighting)), len(self.candidates)
        curve = precision_recall(scores, self.qrels, candidates=candidates)
        return evaluate(scores, self.qrels, candidates=candidates), curve


def layer_names(tower: Tower) -> tuple[str, ...]:
    """What the layers of a tower are called, K of them, in the order of `Tower.layers` and of `model.layer_weights`.

    Raises:
      EndxError: when its encoder does not give its layers.
    """
    outputs = getattr(tower.encoder, "outputs", None)
    if outputs is None:
        raise EndxError(f"{type(tower.encoder).__name__} gives no layers, as BERT, T5 and static vectors do")
    return (TOKEN_TABLE, *outputs)


def pool_layers(model: DualEncoder, params: dict, side: str, tokens: Tokens) -> Array:
    """Pools every layer of one side's tower by the mean, without and with the tower's token weights.

    Args:
      model: both towers, with `token_weights`.
      params: theirs.
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
    """Every way of sharing `parts` equal parts of one among K layers: (K + parts - 1)! / (parts! (K - 1)!) of them."""
    for bars in itertools.combinations(range(layers + parts - 1), layers - 1):
        edges = (-1, *bars, layers + parts - 1)
        yield tuple((after - before - 1) / parts for before, after in itertools.pairwise(edges))


def best_mixture(pooled: PooledLayers, weighting: int, parts: int) -> tuple[tuple[float, ...], float]:
    """The mixture that finds a right candidate first for most questions, the first of equals, and for which share.

    Args:
      pooled: of questions that are held out for choosing.
      weighting: `PLAIN` or `IDF`.
      parts: into how many the weights' sum of one is cut: see `mixtures`.
    """
    right = pad_ids(pooled.qrels)
    texts = [jnp.asarray(part[:, weighting]) for part in (pooled.questions, pooled.candidates)]
    choices = mixtures(texts[0].shape[1], parts)
    hits = {weights: _hits(*texts, right, np.asarray(weights, np.float32)) for weights in choices}
    best = max(hits, key=lambda weights: float(hits[weights]))
    return best, float(hits[best])


@jax.jit
def _hits(questions: Array, candidates: Array, right: Array, weights: Array) -> Array:
    """The share of questions whose best candidate is right."""
    questions, candidates = (l2_normalize(jnp.einsum("nkw,k->nw", x, weights)) for x in (questions, candidates))

    def first(question):
        return jnp.argmax(jnp.matmul(candidates, question, precision=jax.lax.Precision.HIGHEST))

    best = jax.lax.map(first, questions, batch_size=256)
    return jnp.mean(jnp.any(right == best[:, None], axis=1))


def _mixed(pooled: np.ndarray, weights: Sequence[float], weighting: int) -> np.ndarray:
    # A layer at a time: the whole may be mapped from a file that is larger than memory.
    kept = [(weight, layer) for layer, weight in enumerate(weights) if weight]
    return unit_rows(np.sum([np.float32(weight) * pooled[:, weighting, layer] for weight, layer in kept], axis=0))
