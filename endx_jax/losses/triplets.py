r"""Losses of squared distances (RR, section 3.2): batch-hard triplets, and quadratic regression of right pairs.

RR is "Text Embeddings for Retrieval from a Large Knowledge Base". For an anchor q, its farthest right candidate p+ and
its nearest negative p- in the batch (batch-hard mining, Hermans et al. 2017), the triplet loss is:

$$ L = [\|q - p^+\|^2 - \|q - p^-\|^2 + m]^+ $$

Negatives are those of the in-batch softmax. The anchor's own answer, answers equal to it, and known positives are right
candidates.

The hardest candidates are found without a gradient, tile by tile; the loss is then a function of three rows per anchor.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from endx_jax.losses.arguments import check_batch
from endx_jax.losses.false_negatives import Marks, negatives, negatives_of_answers
from endx_jax.losses.shard import AxisName, Shard
from endx_jax.losses.softmax import WEIGHTS
from endx_jax.losses.streaming import Reduction, reduce_scores
from endx_jax.settings import check_choice

Array = jax.Array
Metrics = dict[str, Array]
# Function (marks of anchors, marks of candidates) -> bool [R, C], true for negatives.
Keep = Callable[[Marks, Marks], Array]


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
      tile: maximum rows and columns of a tile of distances, for memory O(B E + tile^2). None computes an array [B, B].
        Both give the same values.
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
    shard = Shard.of(question.shape[0], where, axis_name)
    question, answer = shard.masked_rows(question), shard.masked_rows(answer)
    questions = Marks(shard.index(), shard.where, question_id, answer_id, positive_ids)
    answers = questions._replace(positive_ids=None)
    to_answers, to_questions = WEIGHTS[direction]
    parts = []
    if to_answers:
        hardest = _hardest_triplets(shard, negatives, (question, questions), (answer, answers), tile)
        parts.append((to_answers, hardest))
    if to_questions:
        hardest = _hardest_triplets(shard, negatives_of_answers, (answer, answers), (question, questions), tile)
        parts.append((to_questions, hardest))
    count = shard.psum(jnp.sum(shard.where, dtype=question.dtype))
    losses = sum((weight * triplets.losses(margin) for weight, triplets in parts), start=jnp.zeros_like(question[:, 0]))
    loss = shard.psum(jnp.sum(losses)) / jnp.maximum(count, 1)
    return loss, parts[0][1].metrics(shard, margin, count)


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
    shard = Shard.of(question.shape[0], where, axis_name)
    distances = _squared_distances(shard.masked_rows(question), shard.masked_rows(answer))
    active = shard.where & (distances > margin)
    count = jnp.maximum(shard.psum(jnp.sum(shard.where, dtype=distances.dtype)), 1)
    loss = shard.psum(jnp.sum(jnp.where(active, distances, 0))) / count
    return loss, {"active_fraction": shard.psum(jnp.sum(active, dtype=distances.dtype)) / count}


class Hardest(NamedTuple):
    """Hardest candidates of each of R anchors, as (hardness [R], row of all candidates, int32 [R]); `NONE` if missing.

    Attributes:
      positive: farthest right candidate.
      negative: nearest negative.
      negatives: int32 [R], number of negatives.
    """

    positive: tuple[Array, Array]
    negative: tuple[Array, Array]
    negatives: Array


NONE = jnp.iinfo(jnp.int32).max


def mine_hardest(
    keep: Keep, anchors: Array, candidates: Array, anchor_marks: Marks, candidate_marks: Marks, *, tile: int | None
) -> Hardest:
    """Finds each anchor's hardest candidates, the first one of equally hard ones, without a gradient.

    Args:
      keep: function that marks the negatives among the candidates; all other included candidates are right.
      anchors: float [R, E].
      candidates: float [C, E].
      anchor_marks: marks of the R anchors.
      candidate_marks: marks of the C candidates.
      tile: maximum rows and columns of a tile of distances; None means all at once.
    """
    tile = max(len(anchors), len(candidates)) if tile is None else tile
    # Distances are |a - c|^2 / 2 without |a|^2 / 2, which all candidates of an anchor share.
    columns = candidates, jnp.sum(jnp.square(candidates), axis=1) / 2, jnp.arange(len(candidates))
    keep_both = functools.partial(_right_and_negative, keep)
    return reduce_scores(HARDEST, _distances, keep_both, anchors, columns, anchor_marks, candidate_marks, tile=tile)


def _distances(anchors: Array, candidates: tuple[Array, Array, Array]) -> tuple[Array, Array]:
    """Returns distances [R, C], and the candidates' rows [C]."""
    vectors, half_squares, row = candidates
    return half_squares[None] - jnp.matmul(anchors, vectors.T, precision=jax.lax.Precision.HIGHEST), row


def _right_and_negative(keep: Keep, anchors: Marks, candidates: Marks) -> tuple[Array, Array]:
    counting = anchors.counts[:, None] & candidates.counts[None]
    negative = counting & keep(anchors, candidates)
    return counting & ~negative, negative


def _hardest(tiles: tuple[Array, Array], kept: tuple[Array, Array]) -> Hardest:
    (distances, row), (right, negative) = tiles, kept

    def hardest(allowed, values):
        value = jnp.max(values, axis=1, where=allowed, initial=-jnp.inf)
        equal = allowed & (values == value[:, None])
        return value, jnp.min(jnp.where(equal, row[None], NONE), axis=1, initial=NONE)

    return Hardest(hardest(right, distances), hardest(negative, -distances), jnp.sum(negative, axis=1, dtype=jnp.int32))


def _harder(first: Hardest, second: Hardest) -> Hardest:
    """Returns the harder of two candidates; of equal ones the first."""

    def harder(one, other):
        return tuple(jnp.where(one[0] >= other[0], x, y) for x, y in zip(one, other, strict=True))

    return Hardest(
        harder(first.positive, second.positive),
        harder(first.negative, second.negative),
        first.negatives + second.negatives,
    )


HARDEST = Reduction(_hardest, _harder, finish=lambda hardest: hardest)


class _Triplets(NamedTuple):
    """Hardest triplets of this device's anchors.

    Attributes:
      differences: [R], squared distance to the nearest negative minus that to the farthest right candidate.
      negatives: int32 [R], number of negatives.
    """

    differences: Array
    negatives: Array

    def losses(self, margin: float) -> Array:
        """Returns the losses [R], zero for anchors without a negative."""
        return jnp.where(self.negatives > 0, jnp.maximum(margin - self.differences, 0), 0)

    def metrics(self, shard: Shard, margin: float, count: Array) -> Metrics:
        def share(of: Array) -> Array:
            return shard.psum(jnp.sum(of, dtype=count.dtype)) / jnp.maximum(count, 1)

        masked = jnp.where(shard.where, count - 1 - self.negatives, 0)
        return {
            "in_batch_accuracy": share(shard.where & ((self.differences > 0) | (self.negatives == 0))),
            "active_fraction": share(self.losses(margin) > 0),
            "masked_fraction": shard.psum(jnp.sum(masked)) / jnp.maximum(count * (count - 1), 1),
        }


def _hardest_triplets(
    shard: Shard, keep: Keep, anchors: tuple[Array, Marks], candidates: tuple[Array, Marks], tile: int | None
) -> _Triplets:
    (own, own_marks), (others, other_marks) = anchors, shard.all_gather(candidates)
    hardest = mine_hardest(keep, own, others, own_marks, other_marks, tile=tile)
    to_negative, to_positive = (
        _squared_distances(own, others.at[row].get(mode="clip")) for _, row in (hardest.negative, hardest.positive)
    )
    return _Triplets(to_negative - to_positive, hardest.negatives)


def _squared_distances(x: Array, y: Array) -> Array:
    return jnp.sum(jnp.square(x - y), axis=1)
