"""False negatives: wrong pairs of a batch that are known to be right."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from endx_jax.losses.arguments import check_batch
from endx_jax.losses.shard import AxisName

Array = jax.Array


class Ids(NamedTuple):
    """Ids of N pairs or candidates, or of one, that determine which candidates are negatives.

    Attributes:
      pair: int32 [N], index of the pair in the batch; -1 for hard negatives.
      where: bool [N], false for texts to ignore.
      question_id: int32 [N], id of the pair's question; -1 if unknown; None if not compared.
      answer_id: int32 [N], id of the candidate, or of the question's own answer; -1 if unknown; None if not compared.
      positive_ids: int32 [N, P], ids of a question's right answers, padded with -1; None if not compared.
    """

    pair: Array
    where: Array
    question_id: Array | None = None
    answer_id: Array | None = None
    positive_ids: Array | None = None


def pair_ids(rows: int, axis_name: AxisName = None, *, where: Array | None = None, **ids: Array | None) -> Ids:
    """Returns the ids of this device's pairs; `where` and `ids` are arguments of `in_batch_softmax`.

    Examples:
      >>> print(losses.pair_ids(2, question_id=jnp.array([7, 8])).pair)
      [0 1]
    """
    first = 0 if axis_name is None else jax.lax.axis_index(axis_name) * rows
    return Ids(first + jnp.arange(rows), jnp.ones(rows, bool) if where is None else where, **ids)


def is_negative(question: Ids, candidate: Ids) -> Array:
    """Returns true if one candidate is a negative for one question: both count, and it is not known to be right.

    Examples:
      >>> ids = losses.pair_ids(3, answer_id=jnp.array([4, 7, 4]))
      >>> first = jax.tree.map(lambda x: x[0], ids)
      >>> print(jax.vmap(losses.is_negative, (None, 0))(first, ids))
      [False  True False]
    """
    negative = question.where & candidate.where & (question.pair != candidate.pair)
    for one, other in ((question.question_id, candidate.question_id), (question.answer_id, candidate.answer_id)):
        if one is not None and other is not None:
            negative &= (one != other) | (one < 0)
    if question.positive_ids is not None and candidate.answer_id is not None:
        negative &= ~jnp.any((question.positive_ids == candidate.answer_id) & (question.positive_ids >= 0))
    return negative


def negatives_of_question(question: Ids, candidates: Ids) -> Array:
    """Returns bool [C], true for candidates that are negatives of one question."""
    return jax.vmap(is_negative, (None, 0))(question, candidates)


def negatives_of_answer(answer: Ids, questions: Ids) -> Array:
    """Returns bool [C], true for questions of which one answer is a negative."""
    return jax.vmap(is_negative, (0, None))(questions, answer)


def false_negative_mask(
    *, question_id: Array | None = None, answer_id: Array | None = None, positive_ids: Array | None = None
) -> Array | None:
    """Returns a mask of the off-diagonal pairs of a batch that are not negatives.

    Answer j is not a negative for question i if it equals i's own answer, if questions i and j are equal, or if it is
    among the known positives of i. Questions and answers are numbered apart, so that an answer with the text of
    question i, as of pairs in both directions, has to be among the positives of i.

    The ids are those of `in_batch_softmax`. The mask is bool [B, B], false on the diagonal; None if no ids are given.

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
    ids = pair_ids(len(some), question_id=question_id, answer_id=answer_id, positive_ids=positive_ids)
    negative = jax.vmap(negatives_of_question, (0, None))(ids, ids)
    return ~negative & ~jnp.eye(len(some), dtype=bool)
