r"""Losses of squared distances (RR, section 3.2): triplet loss with batch-hard mining, and a regression of right pairs.

RR is "Text Embeddings for Retrieval from a Large Knowledge Base". For an anchor q, the farthest right candidate p+ and
the nearest negative p- of the whole batch (batch-hard mining, Hermans et al. 2017):

$$ L = [\|q - p^+\|^2 - \|q - p^-\|^2 + m]^+ $$

Negatives are defined as for the in-batch softmax: not the anchor's answer, nor an equal one (such as a paragraph with
two questions), nor one that is known to be right. All of those are right candidates.

The search for the hardest candidates has no gradient, so it is done in tiles; the loss is then a function of three rows
per anchor.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from endx_jax.errors import EndxError
from endx_jax.losses.contrastive import WEIGHTS
from endx_jax.losses.false_negatives import Marks, check_batch, negatives, negatives_of_answers
from endx_jax.losses.shard import AxisName, Shard, cut, joined
from endx_jax.settings import check_choice

Array = jax.Array
Metrics = dict[str, Array]
# Of the marks of anchors and of candidates, bool [R, C]: which candidates are negatives.
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
    """Computes the triplet loss with each anchor's hardest right candidate and hardest negative in the batch.

    Args:
      question: [B, E] embeddings. Distances are float32 at least.
      answer: [B, E] embeddings; row i is a right answer of question i.
      margin: m, the wanted difference of squared distances.
      question_id: int32 [B], equal where questions are equal; -1 where unknown.
      answer_id: int32 [B], equal where answers are equal; -1 where unknown.
      positive_ids: int32 [B, P], answer ids that are right for each question, padded with -1.
      direction: `question_to_answer` (questions are anchors, answers candidates), `answer_to_question`, or the `sum` or
        `mean` of both.
      where: bool [B], the pairs that count; the others are neither anchors nor candidates. NaN there is ignored.
      tile: None compares all pairs at once, in an array [B, B]. A number compares tiles of at most that many rows and
        columns: the same values in memory O(B E + tile^2).
      axis_name: inside `jax.shard_map`, the mesh axis or axes that the batch is split over, as in `in_batch_softmax`.

    Returns:
      The loss, a scalar, the mean over the pairs that count, zero when none does; an anchor without a negative has loss
      zero. And metrics without a gradient, over the anchors that count (questions, unless only answers are anchors):
      `in_batch_accuracy`, the share whose hardest negative is farther than their hardest right candidate;
      `active_fraction`, the share with a loss; `masked_fraction`, the share of the pairs off the diagonal that are not
      negatives.
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
    question, answer = shard.counting(question), shard.counting(answer)
    questions = Marks(shard.index(), shard.where, question_id, answer_id, positive_ids)
    answers = questions._replace(positive_ids=None)
    to_answers, to_questions = WEIGHTS[direction]
    found = []
    if to_answers:
        hardest = _hardest_triplets(shard, negatives, (question, questions), (answer, answers), tile)
        found.append((to_answers, hardest))
    if to_questions:
        hardest = _hardest_triplets(shard, negatives_of_answers, (answer, answers), (question, questions), tile)
        found.append((to_questions, hardest))
    count = shard.psum(jnp.sum(shard.where, dtype=question.dtype))
    losses = sum((weight * triplets.losses(margin) for weight, triplets in found), start=jnp.zeros_like(question[:, 0]))
    loss = shard.psum(jnp.sum(losses)) / jnp.maximum(count, 1)
    return loss, found[0][1].metrics(shard, margin, count)


def quadratic_regression_conditional(
    question: Array,
    answer: Array,
    *,
    margin: float = 0.2,
    where: Array | None = None,
    axis_name: AxisName = None,
) -> tuple[Array, Metrics]:
    """Computes the quadratic regression conditional loss: d where d > m, else 0, with d = |q - p|^2 of right pairs.

    It has no negatives: if both sides are trained, all embeddings in one point minimise it.

    Args:
      question: [B, E] embeddings. Distances are float32 at least.
      answer: [B, E] embeddings; row i is a right answer of question i.
      margin: m, of squared distances.
      where: bool [B], the pairs that count. NaN elsewhere is ignored.
      axis_name: as in `triplet`.

    Returns:
      A scalar, the mean over the pairs that count, zero when none does; and the metric `active_fraction`, the share of
      these with a loss.
    """
    check_batch(question=question, answer=answer, where=where)
    shard = Shard.of(question.shape[0], where, axis_name)
    distances = _squared_distances(shard.counting(question), shard.counting(answer))
    active = shard.where & (distances > margin)
    count = jnp.maximum(shard.psum(jnp.sum(shard.where, dtype=distances.dtype)), 1)
    loss = shard.psum(jnp.sum(jnp.where(active, distances, 0))) / count
    return loss, {"active_fraction": shard.psum(jnp.sum(active, dtype=distances.dtype)) / count}


class Hardest(NamedTuple):
    """Hardest candidates of each anchor as indices of candidates, int32 [R]; 0 where there is none.

    Attributes:
      positive: the farthest right candidate.
      negative: the nearest negative.
      negatives: the number of negatives.
    """

    positive: Array
    negative: Array
    negatives: Array


def mine(
    keep: Keep, anchors: Array, candidates: Array, anchor_marks: Marks, candidate_marks: Marks, *, tile: int | None
) -> Hardest:
    """Finds each anchor's hardest candidates, the first of equally hard ones, without a gradient.

    Args:
      keep: marks candidates that are negatives; all others that count are right.
      anchors: float [R, E].
      candidates: float [C, E].
      anchor_marks: of R anchors.
      candidate_marks: of C candidates.
      tile: maximum number of rows and columns compared at a time; None: all.
    """
    tile = max(len(anchors), len(candidates)) if tile is None else tile
    if tile < 1:
        raise EndxError(f"tile is {tile}; a tile must have a row and a column at least")
    anchors, candidates = jax.lax.stop_gradient((anchors, candidates))
    # |a - c|^2 / 2 without what an anchor's candidates have in common.
    rows = cut(anchors, anchor_marks, tile)
    columns = cut((candidates, jnp.sum(jnp.square(candidates), axis=1) / 2), candidate_marks, tile)
    starts = jnp.arange(len(columns.real)) * columns.real.shape[1]

    def of_row(row):
        def add(best, tile_of_columns):
            start, column = tile_of_columns
            vectors, half_squares = column.operands
            distances = half_squares[None] - jnp.matmul(row.operands, vectors.T, precision=jax.lax.Precision.HIGHEST)
            counting = row.marks.counts[:, None] & column.marks.counts[None] & column.real[None]
            negative = counting & keep(row.marks, column.marks)
            return _Best(
                positive=_better(best.positive, counting & ~negative, distances, start),
                negative=_better(best.negative, negative, -distances, start),
                negatives=best.negatives + jnp.sum(negative, axis=1, dtype=jnp.int32),
            ), None

        # Made from the rows: inside `jax.shard_map` a loop's carry has to vary over the devices from the start.
        zero = 0 * row.operands[:, 0]
        nothing = (zero - jnp.inf, zero.astype(jnp.int32))
        best, _ = jax.lax.scan(add, _Best(nothing, nothing, nothing[1]), (starts, columns))
        return Hardest(best.positive[1], best.negative[1], best.negatives)

    return joined(jax.lax.map(of_row, rows), len(anchors))


class _Best(NamedTuple):
    """Best candidates so far: (value, index of the candidate) of each anchor, and a count."""

    positive: tuple[Array, Array]
    negative: tuple[Array, Array]
    negatives: Array


def _better(best: tuple[Array, Array], allowed: Array, values: Array, start: Array) -> tuple[Array, Array]:
    values = jnp.where(allowed, values, -jnp.inf)
    place = jnp.argmax(values, axis=1)
    value = jnp.take_along_axis(values, place[:, None], axis=1)[:, 0]
    better = value > best[0]
    return jnp.where(better, value, best[0]), jnp.where(better, start + place, best[1]).astype(jnp.int32)


class _Triplets(NamedTuple):
    """Returns, for this device's anchors [R], the margin of the hardest negative and the number of negatives."""

    differences: Array
    negatives: Array

    def losses(self, margin: float) -> Array:
        """[R]; zero without a negative."""
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
    hardest = mine(keep, own, others, own_marks, other_marks, tile=tile)
    to_negative, to_positive = (
        _squared_distances(own, others[place]) for place in (hardest.negative, hardest.positive)
    )
    return _Triplets(to_negative - to_positive, hardest.negatives)


def _squared_distances(x: Array, y: Array) -> Array:
    return jnp.sum(jnp.square(x - y), axis=1)
