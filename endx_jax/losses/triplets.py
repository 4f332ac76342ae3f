r"""Losses of squared distances (RR, section 3.2): batch-hard triplets, and quadratic regression of right pairs.

RR is "Text Embeddings for Retrieval from a Large Knowledge Base". For an anchor q, its farthest right candidate p+ and
its nearest negative p- in the batch (batch-hard mining, Hermans et al. 2017), the triplet loss is:

$$ L = [\|q - p^+\|^2 - \|q - p^-\|^2 + m]^+ $$

Negatives are those of the in-batch softmax. The anchor's own answer, answers equal to it, and known positives are right
candidates.

The hardest candidates are found without a gradient; the loss is then a function of three rows per anchor.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from endx_jax.losses.arguments import check_batch
from endx_jax.losses.false_negatives import Ids, negatives_of_answer, negatives_of_question, pair_ids
from endx_jax.losses.pair_scores import batch_metrics
from endx_jax.losses.rows import dot, map_rows
from endx_jax.losses.shard import AxisName, all_gather, batch_mean, included_rows
from endx_jax.losses.softmax import WEIGHTS
from endx_jax.settings import check_choice

Array = jax.Array
Metrics = dict[str, Array]
Negatives = Callable[[Ids, Ids], Array]


def triplet(
    question: Array,
    answer: Array,
    *,
    margin: float = 0.2,
    question_id: Array | None = None,
    answer_id: Array | None = None,
    positive_ids: Array | None = None,
    direction: str = "question_to_answer",
    where: Array | None = None,
    tile: int | None = None,
    axis_name: AxisName = None,
) -> tuple[Array, Metrics]:
    """Computes the triplet loss with the hardest right candidate and the hardest negative of each anchor.

    Args:
      question: question embeddings [B, E]. Distances are at least float32.
      answer: answer embeddings [B, E]; row i is a right answer of question i.
      margin: margin m between squared distances.
      question_id: int32 [B], equal for equal questions; -1 if unknown.
      answer_id: int32 [B], equal for equal answers; -1 if unknown.
      positive_ids: int32 [B, P], ids of all right answers of each question, padded with -1.
      direction: `question_to_answer` (questions are anchors, answers are candidates), `answer_to_question`, or the
        `sum` or `mean` of both.
      where: bool [B], pairs to include; other pairs are neither anchors nor candidates, even if NaN.
      tile: rows of distances in memory at a time. None computes an array [B, B]. Both give the same values.
      axis_name: inside `jax.shard_map`, the mesh axis or axes over which the batch is split: see `in_batch_softmax`.

    Returns:
      A tuple (loss, metrics). The loss is the mean over the included pairs, zero if there are none; anchors without a
      negative have loss zero. The metrics have no gradient and describe the anchors of the first direction:
      `in_batch_accuracy`, the fraction whose nearest negative is farther than their farthest right candidate;
      `active_fraction`, the fraction with a positive loss; and `masked_fraction`, the fraction of off-diagonal pairs
      that are not negatives.

    Examples:
      >>> question, answer = jnp.array([[0.0, 0.0], [1.0, 0.0]]), jnp.array([[0.0, 0.0], [0.0, 1.0]])
      >>> loss, metrics = losses.triplet(question, answer, margin=0.2)
      >>> print(f"{loss:.4f}", metrics["active_fraction"])  # the mean of [0 - 1 + 0.2]^+ and [2 - 1 + 0.2]^+
      0.6000 0.5
    """
    check_choice("direction", direction, WEIGHTS)
    check_batch(
        question=question,
        answer=answer,
        question_id=question_id,
        answer_id=answer_id,
        positive_ids=positive_ids,
        where=where,
    )
    ids = pair_ids(
        len(question), axis_name, where=where, question_id=question_id, answer_id=answer_id, positive_ids=positive_ids
    )
    question, answer = (included_rows(x, ids.where) for x in (question, answer))
    weights = dict(zip(("a|q", "q|a"), WEIGHTS[direction], strict=True))
    mined = {
        term: _hardest_triplets(
            negatives, *((question, answer) if term == "a|q" else (answer, question)), ids, tile, axis_name
        )
        for term, negatives in (("a|q", negatives_of_question), ("q|a", negatives_of_answer))
        if weights[term]
    }
    losses = {term: jnp.where(count > 0, jnp.maximum(margin - more, 0), 0) for term, (more, count) in mined.items()}
    total = functools.reduce(jnp.add, [weights[term] * rows for term, rows in losses.items()])
    loss = batch_mean(total, ids.where, axis_name)
    first = next(iter(mined))
    differences, negatives = mined[first]
    metrics = batch_metrics(ids.where, negatives, (differences > 0) | (negatives == 0), axis_name)
    return loss, metrics | {"active_fraction": _share(losses[first] > 0, ids.where, axis_name)}


def quadratic_regression_conditional(
    question: Array, answer: Array, *, margin: float = 0.2, where: Array | None = None, axis_name: AxisName = None
) -> tuple[Array, Metrics]:
    """Computes the quadratic regression conditional loss of right pairs, [d - m]^+ + m [d > m] with d = |q - p|^2.

    This equals d if d exceeds the margin m, else 0. The loss has no negatives: if both sides are trained, equal
    embeddings for all texts minimise it.

    Args:
      question: question embeddings [B, E]. Distances are at least float32.
      answer: answer embeddings [B, E]; row i is a right answer of question i.
      margin: margin m of squared distances.
      where: bool [B], pairs to include. Other pairs may be NaN.
      axis_name: as in `triplet`.

    Returns:
      A tuple (loss, metrics). The loss is the mean over the included pairs, zero if there are none. The metric
      `active_fraction` is the fraction of pairs with a positive loss.

    Examples:
      >>> question, answer = jnp.array([[0.0, 0.0], [1.0, 0.0]]), jnp.array([[0.0, 0.0], [0.0, 1.0]])
      >>> loss, metrics = losses.quadratic_regression_conditional(question, answer, margin=0.2)
      >>> print(f"{loss:.4f}", metrics["active_fraction"])  # squared distances 0 and 2
      1.0000 0.5
    """
    check_batch(question=question, answer=answer, where=where)
    where = jnp.ones(len(question), bool) if where is None else where
    distances = _squared_distances(*(included_rows(x, where) for x in (question, answer)))
    active = distances > margin
    loss = batch_mean(jnp.where(active, distances, 0), where, axis_name)
    return loss, {"active_fraction": _share(active, where, axis_name)}


class Hardest(NamedTuple):
    """Hardest candidates of an anchor, the first of equally hard ones; arbitrary if there is none.

    Attributes:
      positive: row of the farthest right candidate.
      negative: row of the nearest negative.
      negatives: number of negatives.
    """

    positive: Array
    negative: Array
    negatives: Array


def hardest(anchor: Array, own: Ids, candidates: Array, others: Ids, negatives: Negatives) -> Hardest:
    """Finds the hardest candidates of one anchor.

    Args:
      anchor: [E].
      own: ids of the anchor.
      candidates: [C, E].
      others: ids of the candidates.
      negatives: function (ids of the anchor, ids of the candidates) -> bool [C]; other included candidates are right.
    """
    negative = negatives(own, others)
    right = own.where & others.where & ~negative
    # |a - c|^2 / 2 without |a|^2 / 2, which all candidates share.
    distances = jnp.sum(jnp.square(candidates), axis=1) / 2 - dot(anchor, candidates)
    farthest, nearest = jnp.where(right, distances, -jnp.inf), jnp.where(negative, distances, jnp.inf)
    return Hardest(jnp.argmax(farthest), jnp.argmin(nearest), jnp.sum(negative, dtype=jnp.int32))


def _hardest_triplets(
    negatives: Negatives, anchors: Array, candidates: Array, ids: Ids, tile: int | None, axis_name: AxisName
) -> tuple[Array, Array]:
    """Returns by anchor [R] the distance to the nearest negative minus that to the farthest right, and negatives."""
    candidates, others = all_gather((candidates, ids), axis_name)

    def of_anchor(row, shared):
        (anchor, own), (candidates, others) = row, shared
        return hardest(anchor, own, candidates, others, negatives)

    found = map_rows(of_anchor, *jax.lax.stop_gradient(((anchors, ids), (candidates, others))), tile)
    to_negative, to_positive = (
        _squared_distances(anchors, candidates[row]) for row in (found.negative, found.positive)
    )
    return to_negative - to_positive, found.negatives


def _squared_distances(x: Array, y: Array) -> Array:
    return jnp.sum(jnp.square(x - y), axis=1)


def _share(of: Array, where: Array, axis_name: AxisName) -> Array:
    return batch_mean(of.astype(jnp.float32), where, axis_name)
