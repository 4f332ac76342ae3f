r"""In-batch sampled softmax loss (Dong et al. 2022, Eq. 1; L_dual in Wang et al. 2021, Eq. 1).

Every other answer of the global batch is a negative for a question:

$$ L = -\frac{1}{B} \sum_i \log \frac{\exp(s_{ii} / \tau)}{\sum_j \exp(s_{ij} / \tau)}, \quad s_{ij} = q_i \cdot a_j $$

With K hard negatives per question, as in t5x_retrieval, each question's sum has B + B K columns: the B answers and the
hard negatives of the whole batch. Each answer's sum still has the B questions.

With margins m_ij = (s_ij - s_ii) / tau, the loss of a question is computed as log(1 + sum_{j != i} exp(m_ij)). So large
scores do not cancel, and losses near 0 remain precise.
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

# Weights of the losses from question to answer and from answer to question.
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
    """Computes the cross-entropy of each question's own answer among all answers of the batch.

    Scores are inner products; pass unit-norm embeddings for cosine similarity. If ids are given, the pairs of
    `false_negative_mask` are excluded from the sums.

    Every hard negative of the batch is a negative for all questions for which it is not known to be right, by
    `answer_id` or `positive_ids`. Repeated texts, as answers or hard negatives, are counted repeatedly, as in
    t5x_retrieval.

    Args:
      question: question embeddings [B, E]. Products are at least float32, with the highest matmul precision.
      answer: answer embeddings [B, E]; row i is the right answer of question i.
      temperature: divisor of the scores, a positive number or scalar array.
      hard_negatives: embeddings [B, K, E] of wrong answers; they are candidates for questions only.
      question_id: int32 [B], equal for equal questions; -1 if unknown.
      answer_id: int32 [B], equal for equal answers; -1 if unknown.
      positive_ids: int32 [B, P], ids of all right answers of each question, padded with -1.
      hard_negative_ids: int32 [B, K], ids of the hard negatives in the numbering of `answer_id`. -1 marks padding,
        whose embeddings are ignored even if NaN. None means that all hard negatives are valid.
      direction: `question_to_answer` (each question against all answers, as both papers print it),
        `answer_to_question`, or the `sum` (as in t5x_retrieval) or `mean` of both.
      where: bool [B], pairs to include. Other pairs, with their hard negatives, are neither averaged nor negatives,
        even if NaN.
      tile: maximum rows and columns of a tile of scores, for memory O(B E + tile^2). Tiles are recomputed for the
        gradient. None computes whole arrays of scores, [B, B] and [B, B K]. Both give the same values.
      axis_name: inside `jax.shard_map`, the mesh axis or axes over which the batch is split. Arrays are then this
        device's rows, and all devices return the loss of the whole batch. Requires `tile`.

    Returns:
      A tuple (loss, metrics). The loss is the mean over the included pairs, zero if there are none. The metrics have no
      gradient: `in_batch_accuracy`, the fraction of questions whose own answer scores higher than all other answers of
      the batch except false negatives; and `masked_fraction`, the fraction of off-diagonal pairs that are false
      negatives.

    Raises:
      EndxError: shapes do not agree, the temperature is not positive (checked outside `jax.jit` only), the direction is
        unknown, or ids are given without the arrays that they refer to.
    """
    check_choice("direction", direction, DIRECTIONS)
    if axis_name is not None and tile is None:
        raise EndxError("axis_name is given without tile: a loss over several devices is streamed, so set tile too")
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
    """Returns the hard negatives of all questions, [B K, E], and their marks."""
    present, ids = jnp.broadcast_to(where[:, None], hard_negatives.shape[:2]), None
    if hard_negative_ids is not None:
        present, ids = present & (hard_negative_ids >= 0), hard_negative_ids.reshape(-1)
    # Replace padding by zeros before the product: a NaN would reach the gradients even if the sum excludes it.
    vectors = jnp.where(present[:, :, None], at_least_float32(hard_negatives), 0)
    present = present.reshape(-1)
    no_pair = jnp.full_like(present, -1, dtype=jnp.int32)
    return vectors.reshape(-1, vectors.shape[-1]), Marks(no_pair, present, None, ids, None)


def _margins(rows: tuple[Array, Array, Array], columns: Array) -> tuple[Array]:
    """Computes the margins of the columns' scores over the row's own score, divided by the temperature."""
    embeddings, own, scale = rows
    # Subtract before the division by the temperature, so that large scores do not cancel.
    return ((jnp.matmul(embeddings, columns.T, precision=jax.lax.Precision.HIGHEST) - own[:, None]) * scale[:, None],)


def _statistics(keep, rows, columns, row_marks, column_marks, tile: int | None) -> RowStatistics:
    if tile is not None:
        return row_statistics(_margins, keep, rows, columns, row_marks, column_marks, tile=tile)
    (margins,), kept = _margins(rows, columns), keep(row_marks, column_marks)
    some = jnp.any(kept, axis=1)
    # The logsumexp of an empty row has no finite gradient, so such rows sum over all columns and are replaced below.
    log_sum_exp = jax.nn.logsumexp(margins, axis=1, where=kept | ~some[:, None])
    return RowStatistics(
        log_sum_exp=jnp.where(some, log_sum_exp, -jnp.inf),
        teacher_log_sum_exp=None,
        difference=None,
        highest=jax.lax.stop_gradient(jnp.max(margins, axis=1, where=kept, initial=-jnp.inf)),
        kept=jnp.sum(kept, axis=1),
    )


def _row_losses(others: list[RowStatistics]) -> Array:
    """Returns log(1 + sum of the exponentials of all margins) [R], given statistics of several sets of columns."""
    losses = jnp.zeros_like(others[0].log_sum_exp)
    for statistics in others:
        losses += jax.nn.softplus(statistics.log_sum_exp - losses)
    return losses
