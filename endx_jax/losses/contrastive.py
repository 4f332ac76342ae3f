r"""The in-batch sampled softmax of Dong et al. 2022, Eq. 1, which is ENDX's L_dual too.

Every other answer of the global batch is a negative for a question:

$$ L = -\frac{1}{B} \sum_i \log \frac{\exp(s_{ii} / \tau)}{\sum_j \exp(s_{ij} / \tau)}, \quad s_{ij} = q_i \cdot a_j $$
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
    masks = [_same(ids, ids) for ids in (question_id, answer_id) if ids is not None]
    if positive_ids is not None:
        if answer_id is None:
            raise EndxError("positive_ids names answers by their ids, so it needs answer_id as well")
        masks.append(_contains(positive_ids, answer_id))
    if not masks:
        return None
    size = masks[0].shape[0]
    return jnp.any(jnp.stack(masks), axis=0) & ~jnp.eye(size, dtype=bool)


def in_batch_softmax(
    question: Array,
    answer: Array,
    *,
    temperature: float | Array = 1.0,
    question_id: Array | None = None,
    answer_id: Array | None = None,
    positive_ids: Array | None = None,
    direction: str = "question_to_answer",
    where: Array | None = None,
) -> Array:
    """Cross-entropy of picking each question's own answer among all answers of the batch (Dong et al. 2022, Eq. 1).

    The scores are inner products: give unit-norm embeddings for cosine similarity. With any of the ids, pairs that
    `false_negative_mask` marks are left out of the sums.

    Args:
      question: [B, E] embeddings. Products and sums are float32 at least, at the highest matmul precision.
      answer: [B, E] embeddings; row i is the right answer of question i.
      temperature: divides the scores; a positive number or scalar array.
      question_id: int32 [B], -1 where unknown.
      answer_id: int32 [B], -1 where unknown.
      positive_ids: int32 [B, P], padded with -1.
      direction: `question_to_answer` (each question against all answers, as both papers print it),
        `answer_to_question`, or both directions as their `sum` (what t5x_retrieval trains with) or `mean`.
      where: bool [B], the pairs that count; the others are neither averaged nor used as negatives.

    Returns:
      A scalar, the mean over the pairs that count; zero when none does.
    """
    if direction not in DIRECTIONS:
        raise EndxError(f"direction is {direction!r}, which is none of {', '.join(DIRECTIONS)}")
    question, answer = at_least_float32(question), at_least_float32(answer)
    scores = jnp.matmul(question, answer.T, precision=jax.lax.Precision.HIGHEST)
    excluded = false_negative_mask(question_id=question_id, answer_id=answer_id, positive_ids=positive_ids)
    if excluded is None:
        excluded = jnp.zeros(scores.shape, dtype=bool)
    if where is None:
        where = jnp.ones(scores.shape[0], dtype=bool)

    forward = _row_cross_entropy(scores, temperature, excluded | ~where[None, :], where)
    if direction == "question_to_answer":
        return forward
    backward = _row_cross_entropy(scores.T, temperature, excluded.T | ~where[None, :], where)
    if direction == "answer_to_question":
        return backward
    return forward + backward if direction == "sum" else (forward + backward) / 2


def _row_cross_entropy(scores: Array, temperature: float | Array, excluded: Array, where: Array) -> Array:
    """Mean over rows of log-sum-exp minus the diagonal; excluded columns weigh nothing, the diagonal always counts."""
    excluded = excluded & ~jnp.eye(scores.shape[0], dtype=bool)
    # The diagonal goes before the division, so that its own term is exactly 0 and large scores do not cancel.
    margins = (scores - jnp.diagonal(scores)[:, None]) / temperature
    return masked_mean(jax.nn.logsumexp(margins, axis=1, where=~excluded), where)


def _same(ids: Array, others: Array) -> Array:
    """Bool [B, B]: whether ids [B] and others [B] are equal and known."""
    return (ids[:, None] == others[None, :]) & (ids[:, None] >= 0)


def _contains(positive_ids: Array, answer_id: Array) -> Array:
    """Bool [B, B]: whether answer j's id is among row i's positives; looped over P to keep memory at B x B."""

    def add(found, ids):
        return found | _same(ids, answer_id), None

    none = jnp.zeros((positive_ids.shape[0], answer_id.shape[0]), dtype=bool)
    found, _ = jax.lax.scan(add, none, positive_ids.T)
    return found
