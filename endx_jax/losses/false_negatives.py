"""False negatives: off-diagonal pairs of a batch that are right."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from endx_jax.losses.arguments import check_batch

Array = jax.Array


def false_negative_mask(
    *, question_id: Array | None = None, answer_id: Array | None = None, positive_ids: Array | None = None
) -> Array | None:
    """Returns a mask of the off-diagonal pairs of a batch that are not negatives.

    Answer j is not a negative for question i if it equals i's own answer, if questions i and j are equal, or if it is
    among the known positives of i. Questions and answers are numbered apart, so that an answer with the text of
    question i, as of pairs in both directions, has to be among the positives of i.

    Args:
      question_id: int32 [B], equal for equal questions; -1 if unknown, which equals nothing.
      answer_id: int32 [B], equal for equal answers; -1 if unknown, which equals nothing.
      positive_ids: int32 [B, P], ids of all right answers of each question and of its own text as an answer, padded
        with -1; requires `answer_id`.

    Returns:
      bool [B, B], false on the diagonal; None if no ids are given.

    Examples:
      >>> print(losses.false_negative_mask(answer_id=jnp.array([4, 7, 4])).astype(int))
      [[0 0 1]
       [0 0 0]
       [1 0 0]]
    """
    check_batch(question_id=question_id, answer_id=answer_id, positive_ids=positive_ids)
    some = question_id if question_id is not None else answer_id
    if some is None:
        return None
    pair = jnp.arange(some.shape[0])
    marks = Marks(pair, jnp.ones(pair.shape, dtype=bool), question_id, answer_id, positive_ids)
    return ~negatives(marks, marks) & (pair[:, None] != pair[None, :])


class Marks(NamedTuple):
    """Ids of N questions or N candidates that determine which candidates are negatives.

    Attributes:
      pair: int32 [N], index of the pair in the batch; -1 for hard negatives.
      counts: bool [N], false for rows to ignore.
      question_id: int32 [N], id of the pair's question; -1 if unknown; None if not compared.
      answer_id: int32 [N], id of the candidate, or of the question's own answer; -1 if unknown; None if not compared.
      positive_ids: int32 [N, P], ids of a question's right answers, padded with -1; None if not compared.
    """

    pair: Array
    counts: Array
    question_id: Array | None
    answer_id: Array | None
    positive_ids: Array | None


def negatives(questions: Marks, candidates: Marks) -> Array:
    """Returns bool [Q, C], true if both rows count and the candidate is not known to be right for the question."""
    is_negative = questions.counts[:, None] & candidates.counts[None, :]
    is_negative &= questions.pair[:, None] != candidates.pair[None, :]
    if questions.question_id is not None and candidates.question_id is not None:
        is_negative &= ~_same(questions.question_id, candidates.question_id)
    if questions.answer_id is not None and candidates.answer_id is not None:
        is_negative &= ~_same(questions.answer_id, candidates.answer_id)
    if questions.positive_ids is not None and candidates.answer_id is not None:
        is_negative &= ~_contains(questions.positive_ids, candidates.answer_id)
    return is_negative


def negatives_of_answers(answers: Marks, questions: Marks) -> Array:
    """Returns the transpose of `negatives`, bool [A, Q], for answers as rows and questions as candidates."""
    return negatives(questions, answers).T


def _same(ids: Array, others: Array) -> Array:
    """Returns bool [Q, C], true where ids [Q] and others [C] are equal and known."""
    return (ids[:, None] == others[None, :]) & (ids[:, None] >= 0)


def _contains(positive_ids: Array, candidate_id: Array) -> Array:
    """Returns bool [Q, C], true if candidate c is among row q's positives; loops over P for memory O(Q C)."""

    def add(contained, ids):
        return contained | _same(ids, candidate_id), None

    unknown = jnp.full_like(positive_ids, -1, shape=positive_ids.shape[:1])
    contained, _ = jax.lax.scan(add, _same(unknown, candidate_id), positive_ids.T)
    return contained
