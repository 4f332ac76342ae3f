r"""In-batch sampled softmax (Dong et al. 2022, Eq. 1; ENDX's L_dual).

Every other answer of the global batch is a negative for a question:

$$ L = -\frac{1}{B} \sum_i \log \frac{\exp(s_{ii} / \tau)}{\sum_j \exp(s_{ij} / \tau)}, \quad s_{ij} = q_i \cdot a_j $$

With K hard negatives per question, as in t5x_retrieval, each question's sum runs over B + B K columns: the B answers,
then the hard negatives of the whole batch, row by row. Each answer's sum still runs over the B questions.

A question's own term is taken out of the sum, where it would be exp(0): with margins m_ij = (s_ij - s_ii) / tau, its
loss is log(1 + sum_{j != i} exp(m_ij)). So large scores do not cancel, and losses near 0 keep their digits.
"""

import jax
import jax.numpy as jnp

from endx_jax.checks import check_positive
from endx_jax.errors import EndxError
from endx_jax.losses.false_negatives import Marks, check_batch, negatives, negatives_of_answers
from endx_jax.losses.shard import AxisName, Shard
from endx_jax.losses.streaming import RowStatistics, row_statistics
from endx_jax.numerics import at_least_float32
from endx_jax.settings import check_choice

Array = jax.Array

# What the losses from question to answer and from answer to question weigh.
WEIGHTS = {
    "question_to_answer": (1, 0),
    "answer_to_question": (0, 1),
    "sum": (1, 1),
    "mean": (0.5, 0.5),
}
DIRECTIONS = tuple(WEIGHTS)


def in_batch_softmax(
    question: Array,
    answer: Array,
    *,
    temperature: float | Array = 1.0,
    hard_negatives: Array | None = None,
    question_id: Array | None = None,
    answer_id: Array | None = None,
    positive_ids: Array | None = None,
    hard_negative_ids: Array | None = None,
    direction: str = "question_to_answer",
    where: Array | None = None,
    tile: int | None = None,
    axis_name: AxisName = None,
) -> tuple[Array, dict[str, Array]]:
    """Computes the cross-entropy of selecting each question's answer among all of the batch (Dong et al. 2022, Eq. 1).

    The scores are inner products: give unit-norm embeddings for cosine similarity. With any of the ids, pairs that
    `false_negative_mask` marks are left out of the sums.

    Every hard negative of the batch is a negative for every question, except those for which it is known to be right,
    by their `answer_id` or `positive_ids`. A text that is in the batch several times, as answers or as hard negatives,
    counts several times (as in t5x_retrieval).

    Args:
      question: [B, E] embeddings. Products and sums are float32 at least, at the highest matmul precision.
      answer: [B, E] embeddings; row i is the right answer of question i.
      temperature: divides the scores; a number or scalar array greater than 0.
      hard_negatives: [B, K, E] embeddings of wrong answers, candidates from question to answer and not the other way.
      question_id: int32 [B], -1 where unknown.
      answer_id: int32 [B], -1 where unknown.
      positive_ids: int32 [B, P], padded with -1.
      hard_negative_ids: int32 [B, K], from the same table as `answer_id`; -1 where a question has fewer than K, whose
        embeddings are then ignored, NaN included. Without it all count.
      direction: `question_to_answer` (each question against all answers, as both papers print it),
        `answer_to_question`, or both directions as their `sum` (what t5x_retrieval trains with) or `mean`.
      where: bool [B], the pairs that count; the others, and their hard negatives, are neither averaged nor used as
        negatives. NaN there is ignored.
      tile: None computes with whole arrays of scores, [B, B] and [B, B K]. A number streams them in tiles of that many
        rows and columns at most, made once more for the gradient: the same values in memory O(B E + tile^2).
      axis_name: inside `jax.shard_map`, the mesh axis or axes that the batch is split over. All arrays are then the
        rows of this device, columns are gathered from the others, and all devices return the result of the whole
        batch. Needs `tile`.

    Returns:
      The loss, a scalar, the mean over the pairs that count, zero when none does; and metrics without a gradient:
      `in_batch_accuracy`, the share of the questions that count whose own answer scores higher than every other answer
      of the batch, false negatives and hard negatives left aside; and `masked_fraction`, the share of the pairs off the
      diagonal, among those that count, that are false negatives.

    Raises:
      EndxError: shapes do not agree, the temperature is not positive (checked outside of `jax.jit` only), the direction
        is unknown, or ids are given without the arrays that they refer to.
    """
    check_choice("direction", direction, DIRECTIONS)
    if axis_name is not None and tile is None:
        raise EndxError("axis_name is given, and scores split over devices are streamed: it needs tile as well")
    check_positive("temperature", temperature)
    check_batch(
        question=question,
        answer=answer,
        hard_negatives=hard_negatives,
        question_id=question_id,
        answer_id=answer_id,
        positive_ids=positive_ids,
        hard_negative_ids=hard_negative_ids,
        where=where,
    )
    shard = Shard.of(question.shape[0], where, axis_name)
    question, answer = shard.counting(question), shard.counting(answer)
    own = jnp.sum(question * answer, axis=1)
    scale = jnp.broadcast_to(1 / jnp.asarray(temperature, own.dtype), own.shape)
    questions = Marks(shard.index(), shard.where, question_id, answer_id, positive_ids)
    answers = questions._replace(positive_ids=None)

    def others(keep, rows, columns, row_marks, column_marks):
        columns, column_marks = shard.all_gather((columns, column_marks))
        return _statistics(keep, (rows, own, scale), columns, row_marks, column_marks, tile)

    other_answers = others(negatives, question, answer, questions, answers)
    to_answers, to_questions = WEIGHTS[direction]
    losses = jnp.zeros_like(own)
    if to_answers:
        terms = [other_answers]
        if hard_negatives is not None:
            hard, candidates = _hard_candidates(hard_negatives, hard_negative_ids, shard.where)
            terms.append(others(negatives, question, hard, questions, candidates))
        losses += to_answers * _row_losses(terms)
    if to_questions:
        losses += to_questions * _row_losses([others(negatives_of_answers, answer, question, answers, questions)])
    count = shard.psum(jnp.sum(shard.where, dtype=own.dtype))
    loss = shard.psum(jnp.sum(losses)) / jnp.maximum(count, 1)
    return loss, _metrics(other_answers, shard, count)


def _metrics(other_answers: RowStatistics, shard: Shard, count: Array) -> dict[str, Array]:
    right = shard.where & (other_answers.highest < 0)
    masked = jnp.where(shard.where, count - 1 - other_answers.kept, 0)
    return {
        "in_batch_accuracy": shard.psum(jnp.sum(right, dtype=count.dtype)) / jnp.maximum(count, 1),
        "masked_fraction": shard.psum(jnp.sum(masked)) / jnp.maximum(count * (count - 1), 1),
    }


def _hard_candidates(hard_negatives: Array, hard_negative_ids: Array | None, where: Array) -> tuple[Array, Marks]:
    """Returns the hard negatives [B K, E], row by row."""
    present, ids = jnp.broadcast_to(where[:, None], hard_negatives.shape[:2]), None
    if hard_negative_ids is not None:
        present, ids = present & (hard_negative_ids >= 0), hard_negative_ids.reshape(-1)
    # Zeros stand in for the missing before the product: left out of the sum alone, a NaN would reach the gradients.
    vectors = jnp.where(present[:, :, None], at_least_float32(hard_negatives), 0)
    present = present.reshape(-1)
    no_pair = jnp.full_like(present, -1, dtype=jnp.int32)
    return vectors.reshape(-1, vectors.shape[-1]), Marks(no_pair, present, None, ids, None)


def _margins(rows: tuple[Array, Array, Array], columns: Array) -> tuple[Array]:
    """Computes the margin of each column's score over the score of the row's pair."""
    embeddings, own, scale = rows
    # Taken off before the division by the temperature, so that large scores do not cancel.
    return ((jnp.matmul(embeddings, columns.T, precision=jax.lax.Precision.HIGHEST) - own[:, None]) * scale[:, None],)


def _statistics(keep, rows, columns, row_marks, column_marks, tile: int | None) -> RowStatistics:
    if tile is not None:
        return row_statistics(_margins, keep, rows, columns, row_marks, column_marks, tile=tile)
    (margins,), kept = _margins(rows, columns), keep(row_marks, column_marks)
    some = jnp.any(kept, axis=1)
    # A row that keeps nothing sums over everything before its result is replaced: empty sums have no finite gradient.
    log_sum_exp = jax.nn.logsumexp(margins, axis=1, where=kept | ~some[:, None])
    return RowStatistics(
        log_sum_exp=jnp.where(some, log_sum_exp, -jnp.inf),
        teacher_log_sum_exp=None,
        difference=None,
        highest=jax.lax.stop_gradient(jnp.max(margins, axis=1, where=kept, initial=-jnp.inf)),
        kept=jnp.sum(kept, axis=1),
    )


def _row_losses(others: list[RowStatistics]) -> Array:
    """Computes log(1 + sum of exp(margin)) of each row, over one set of columns after the other."""
    losses = jnp.zeros_like(others[0].log_sum_exp)
    for statistics in others:
        losses += jax.nn.softplus(statistics.log_sum_exp - losses)
    return losses
