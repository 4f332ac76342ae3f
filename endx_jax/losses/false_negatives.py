"""False negatives: right pairs off the diagonal of a batch."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from endx_jax.checks import check_arrays
from endx_jax.errors import EndxError

Array = jax.Array


def false_negative_mask(
    *,
    question_id: Array | None = None,
    answer_id: Array | None = None,
    positive_ids: Array | None = None,
) -> Array | None:
    """Marks the pairs off the diagonal of a batch that are not negatives.

    Answer j is no negative for question i when it is the same answer as i's own, when the two questions are the same,
    or when j is among the positives known for i.

    Args:
      question_id: int32 [B], equal where questions are equal; -1, which equals nothing, where unknown.
      answer_id: int32 [B], equal where answers are equal; -1 likewise.
      positive_ids: int32 [B, P], answer ids that are right for each question, padded with -1; needs `answer_id`.

    Returns:
      bool [B, B], never true on the diagonal; None when no id is given.
    """
    check_batch(question_id=question_id, answer_id=answer_id, positive_ids=positive_ids)
    some = question_id if question_id is not None else answer_id
    if some is None:
        return None
    pair = jnp.arange(some.shape[0])
    marks = Marks(pair, jnp.ones(pair.shape, dtype=bool), question_id, answer_id, positive_ids)
    return ~negatives(marks, marks) & (pair[:, None] != pair[None, :])


# Documented shapes of the arguments that losses of a batch share.
SHAPES = {
    "question": "[B, E]",
    "answer": "[B, E]",
    "hard_negatives": "[B, K, E]",
    "drawn": "integer [B, K]",
    "question_id": "integer [B]",
    "answer_id": "integer [B]",
    "positive_ids": "integer [B, P]",
    "hard_negative_ids": "integer [B, K]",
    "where": "bool [B]",
}


def check_batch(**arrays: Array | None) -> None:
    """Checks arguments of a loss by their names in `SHAPES`.

    Raises:
      EndxError: for shapes that do not agree, or ids without the arrays that they refer to.
    """
    check_arrays({name: (array, SHAPES[name]) for name, array in arrays.items()})
    if arrays.get("positive_ids") is not None and arrays["answer_id"] is None:
        raise EndxError("positive_ids names answers by their ids, so it needs answer_id as well")
    if arrays.get("hard_negative_ids") is not None and arrays["hard_negatives"] is None:
        raise EndxError("hard_negative_ids names hard negatives, so it needs hard_negatives as well")


class Marks(NamedTuple):
    """Ids that separate negatives from other candidates, for N questions or N candidates.

    Attributes:
      pair: int32 [N], index of its pair in the batch; -1 for a hard negative.
      counts: bool [N], false for rows to ignore.
      question_id: int32 [N], of its pair, -1 where unknown; None, here and below, if ids are not given.
      answer_id: int32 [N], of the candidate, or of the question's pair; -1 where unknown.
      positive_ids: int32 [N, P], of a question, padded with -1.
    """

    pair: Array
    counts: Array
    question_id: Array | None
    answer_id: Array | None
    positive_ids: Array | None


def negatives(questions: Marks, candidates: Marks) -> Array:
    """Marks the negatives, bool [Q, C]: both count, and the candidate is not known to be right for the question."""
    found = questions.counts[:, None] & candidates.counts[None, :]
    found &= questions.pair[:, None] != candidates.pair[None, :]
    if questions.question_id is not None and candidates.question_id is not None:
        found &= ~_same(questions.question_id, candidates.question_id)
    if questions.answer_id is not None and candidates.answer_id is not None:
        found &= ~_same(questions.answer_id, candidates.answer_id)
    if questions.positive_ids is not None and candidates.answer_id is not None:
        found &= ~_contains(questions.positive_ids, candidates.answer_id)
    return found


def negatives_of_answers(answers: Marks, questions: Marks) -> Array:
    """Marks the negatives, bool [A, Q], with answers as rows and questions as their candidates."""
    return negatives(questions, answers).T


def _same(ids: Array, others: Array) -> Array:
    """Marks pairs of ids [Q] and others [C] that are equal and known, bool [Q, C]."""
    return (ids[:, None] == others[None, :]) & (ids[:, None] >= 0)


def _contains(positive_ids: Array, candidate_id: Array) -> Array:
    """Marks candidates whose id is among the row's positives, bool [Q, C]; loops over P to keep memory at Q x C."""

    def add(found, ids):
        return found | _same(ids, candidate_id), None

    unknown = jnp.full_like(positive_ids, -1, shape=positive_ids.shape[:1])
    found, _ = jax.lax.scan(add, _same(unknown, candidate_id), positive_ids.T)
    return found
