r"""The in-batch sampled softmax of Dong et al. 2022, Eq. 1, which is ENDX's L_dual too.

Every other answer of the global batch is a negative for a question:

$$ L = -\frac{1}{B} \sum_i \log \frac{\exp(s_{ii} / \tau)}{\sum_j \exp(s_{ij} / \tau)}, \quad s_{ij} = q_i \cdot a_j $$

With K hard negatives to a question, as in t5x_retrieval, each question's sum runs over B + B K columns: the B answers,
then the hard negatives of all the batch, row by row. Each answer's sum still runs over the B questions.
"""

import jax
import jax.numpy as jnp

from endx_jax.errors import EndxError
from endx_jax.numerics import at_least_float32, masked_mean

Array = jax.Array

DIRECTIONS = ("question_to_answer", "answer_to_question", "sum", "mean")


def false_negative_mask(
    *,
    question_id: Array | None = None,
    answer_id: Array | None = None,
    positive_ids: Array | None = None,
) -> Array | None:
    """Marks the pairs of the batch that are no negatives, though they stand off the diagonal.

    Answer j is no negative for question i when it is the same answer as i's own, when the two questions are the same,
    or when j is among the positives known for i.

    Args:
      question_id: int32 [B], equal where questions are equal; -1, which equals nothing, where unknown.
      answer_id: int32 [B], equal where answers are equal; -1 likewise.
      positive_ids: int32 [B, P], answer ids that are right for each question, padded with -1; needs `answer_id`.

    Returns:
      bool [B, B], never true on the diagonal; None when no id is given.
    """
    if positive_ids is not None and answer_id is None:
        raise EndxError("positive_ids names answers by their ids, so it needs answer_id as well")
    masks = []
    if question_id is not None:
        masks.append(_same(question_id, question_id))
    if answer_id is not None:
        masks.append(_known_right(answer_id, answer_id, positive_ids))
    if not masks:
        return None
    size = masks[0].shape[0]
    return jnp.any(jnp.stack(masks), axis=0) & ~jnp.eye(size, dtype=bool)


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
) -> Array:
    """Cross-entropy of picking each question's own answer among all answers of the batch (Dong et al. 2022, Eq. 1).

    The scores are inner products: give unit-norm embeddings for cosine similarity. With any of the ids, pairs that
    `false_negative_mask` marks are left out of the sums.

    Every hard negative of the batch is a negative for every question, save for those to which it is known to be right:
    whose `answer_id` it is, or among whose `positive_ids` it stands. A text that is in the batch several times, as
    answers or as hard negatives, counts as often as it is there (t5x_retrieval does the same).

    Args:
      question: [B, E] embeddings. Products and sums are float32 at least, at the highest matmul precision.
      answer: [B, E] embeddings; row i is the right answer of question i.
      temperature: divides the scores; a positive number or scalar array.
      hard_negatives: [B, K, E] embeddings of wrong answers, candidates from question to answer and not the other way.
      question_id: int32 [B], -1 where unknown.
      answer_id: int32 [B], -1 where unknown.
      positive_ids: int32 [B, P], padded with -1.
      hard_negative_ids: int32 [B, K], from the same table as `answer_id`; -1 where a question has fewer than K, whose
        embeddings are then ignored, NaN included. Without it all count.
      direction: `question_to_answer` (each question against all answers, as both papers print it),
        `answer_to_question`, or both directions as their `sum` (what t5x_retrieval trains with) or `mean`.
      where: bool [B], the pairs that count; the others are neither averaged nor used as negatives, and nor are their
        hard negatives.

    Returns:
      A scalar, the mean over the pairs that count; zero when none does.
    """
    if direction not in DIRECTIONS:
        raise EndxError(f"direction is {direction!r}, which is none of {', '.join(DIRECTIONS)}")
    _check_hard_negatives(question, hard_negatives, hard_negative_ids)
    question, answer = at_least_float32(question), at_least_float32(answer)
    scores = _inner_products(question, answer)
    excluded = false_negative_mask(question_id=question_id, answer_id=answer_id, positive_ids=positive_ids)
    if excluded is None:
        excluded = jnp.zeros(scores.shape, dtype=bool)
    if where is None:
        where = jnp.ones(scores.shape[0], dtype=bool)

    candidates, no_negatives = scores, excluded | ~where[None, :]
    if hard_negatives is not None:
        hard = _hard_negative_columns(question, hard_negatives, hard_negative_ids, where, answer_id, positive_ids)
        candidates = jnp.concatenate([candidates, hard[0]], axis=1)
        no_negatives = jnp.concatenate([no_negatives, hard[1]], axis=1)
    forward = _row_cross_entropy(candidates, no_negatives, temperature, where)
    if direction == "question_to_answer":
        return forward
    backward = _row_cross_entropy(scores.T, excluded.T | ~where[None, :], temperature, where)
    if direction == "answer_to_question":
        return backward
    return forward + backward if direction == "sum" else (forward + backward) / 2


def _check_hard_negatives(question: Array, hard_negatives: Array | None, hard_negative_ids: Array | None) -> None:
    if hard_negatives is None:
        if hard_negative_ids is not None:
            raise EndxError("hard_negative_ids names hard negatives, so it needs hard_negatives as well")
        return
    (size, width), shape = question.shape, hard_negatives.shape
    if len(shape) != 3 or (shape[0], shape[2]) != (size, width):
        raise EndxError(f"hard_negatives has shape {shape}; for these questions it must be [{size}, K, {width}]")
    if hard_negative_ids is not None and hard_negative_ids.shape != shape[:2]:
        raise EndxError(
            f"hard_negative_ids has shape {hard_negative_ids.shape}; "
            f"for these hard_negatives it must be [{size}, {shape[1]}]"
        )


def _hard_negative_columns(
    question: Array,
    hard_negatives: Array,
    hard_negative_ids: Array | None,
    where: Array,
    answer_id: Array | None,
    positive_ids: Array | None,
) -> tuple[Array, Array]:
    """Scores [B, B * K] of every question with the batch's hard negatives, row by row, and bool, which to leave out."""
    present = jnp.broadcast_to(where[:, None], hard_negatives.shape[:2])
    if hard_negative_ids is not None:
        present = present & (hard_negative_ids >= 0)
    # Zeros stand in for the missing before the product: left out of the sum alone, a NaN would reach the gradients.
    vectors = jnp.where(present[:, :, None], at_least_float32(hard_negatives), 0)
    scores = _inner_products(question, vectors.reshape(-1, vectors.shape[-1]))
    excluded = jnp.broadcast_to(~present.reshape(1, -1), scores.shape)
    if hard_negative_ids is not None and answer_id is not None:
        excluded = excluded | _known_right(hard_negative_ids.reshape(-1), answer_id, positive_ids)
    return scores, excluded


def _inner_products(rows: Array, columns: Array) -> Array:
    return jnp.matmul(rows, columns.T, precision=jax.lax.Precision.HIGHEST)


def _row_cross_entropy(scores: Array, excluded: Array, temperature: float | Array, where: Array) -> Array:
    """Mean over rows of log-sum-exp minus the diagonal; excluded columns weigh nothing, the diagonal always counts."""
    excluded = excluded & ~jnp.eye(scores.shape[0], scores.shape[1], dtype=bool)
    # The diagonal goes before the division, so that its own term is exactly 0 and large scores do not cancel.
    margins = (scores - jnp.diagonal(scores)[:, None]) / temperature
    return masked_mean(jax.nn.logsumexp(margins, axis=1, where=~excluded), where)


def _known_right(candidate_id: Array, answer_id: Array, positive_ids: Array | None) -> Array:
    """Bool [B, C]: whether candidate c is the same answer as row i's own, or among its positives."""
    same = _same(answer_id, candidate_id)
    return same if positive_ids is None else same | _contains(positive_ids, candidate_id)


def _same(ids: Array, others: Array) -> Array:
    """Bool [B, C]: whether ids [B] and others [C] are equal and known."""
    return (ids[:, None] == others[None, :]) & (ids[:, None] >= 0)


def _contains(positive_ids: Array, candidate_id: Array) -> Array:
    """Bool [B, C]: whether candidate c's id is among row i's positives; looped over P to keep memory at B x C."""

    def add(found, ids):
        return found | _same(ids, candidate_id), None

    none = jnp.zeros((positive_ids.shape[0], candidate_id.shape[0]), dtype=bool)
    found, _ = jax.lax.scan(add, none, positive_ids.T)
    return found
