"""Matching questions and answers pair by pair, right ones against sampled wrong ones (Yu et al. 2020, Eq. 6).

The scores are cosines. A right pair is to have 1 and a wrong one 0: as a regression, which the authors are said to have
trained with, or as the probability that the paper prints.
"""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from endx_jax.losses.false_negatives import Marks, check_batch, negatives
from endx_jax.losses.shard import AxisName, Shard
from endx_jax.numerics import l2_normalize
from endx_jax.settings import check_choice

Array = jax.Array

# How near to 0 the probability of what happened may come.
EDGE = 1e-6


def squared_error(cosines: Array, right: Array) -> Array:
    """(cosine - y)^2, elementwise, with y = 1 for right pairs and 0 for wrong ones."""
    return jnp.square(cosines - right)


def binary_cross_entropy(cosines: Array, right: Array) -> Array:
    """-y log p - (1 - y) log(1 - p), elementwise, with p = (1 + cosine) / 2, which is kept `EDGE` away from wrong."""
    of_what_is = jnp.where(right, 1 + cosines, 1 - cosines) / 2
    return -jnp.log(jnp.maximum(of_what_is, EDGE))


# Of cosines and of whether their pairs are right, elementwise.
MATCHINGS: Mapping[str, Callable[[Array, Array], Array]] = {"mse": squared_error, "bce": binary_cross_entropy}


def sampled_matching(
    question: Array,
    answer: Array,
    drawn: Array,
    *,
    kind: str = "mse",
    question_id: Array | None = None,
    answer_id: Array | None = None,
    positive_ids: Array | None = None,
    where: Array | None = None,
    axis_name: AxisName = None,
) -> tuple[Array, dict[str, Array]]:
    """The mean loss of each question with its own answer and with the answers of pairs drawn from the batch.

    A pair that is drawn and known to be right, by any of the ids, is left out; so is a question drawn against itself.

    Args:
      question: [B, E]; cosines are made here, float32 at least.
      answer: [B, E]; row i is the right answer of question i.
      drawn: int32 [B, K], rows of the whole batch: see `draw_others`.
      kind: a name in `MATCHINGS`.
      question_id: int32 [B], -1 where unknown.
      answer_id: int32 [B], -1 where unknown.
      positive_ids: int32 [B, P], padded with -1.
      where: bool [B], the pairs that count. NaN in others is ignored.
      axis_name: inside `jax.shard_map`, the mesh axes that the batch is split over: see `in_batch_softmax`.

    Returns:
      The loss, a scalar, the mean over all pairs that count, right and wrong alike, zero when none does; no metrics.
    """
    check_choice("kind", kind, MATCHINGS)
    check_batch(
        question=question,
        answer=answer,
        drawn=drawn,
        question_id=question_id,
        answer_id=answer_id,
        positive_ids=positive_ids,
        where=where,
    )
    shard, loss = Shard.of(question.shape[0], where, axis_name), MATCHINGS[kind]
    question, answer = (l2_normalize(shard.counting(x)) for x in (question, answer))
    marks = Marks(shard.index(), shard.where, question_id, answer_id, positive_ids)
    others, of_others = shard.all_gather((answer, marks._replace(positive_ids=None)))
    wrong = jax.vmap(lambda one, all_others: negatives(jax.tree.map(lambda x: x[None], one), all_others)[0])(
        marks, jax.tree.map(lambda x: x[drawn], of_others)
    )
    of_own = loss(jnp.sum(question * answer, axis=1), jnp.ones((), bool))
    of_drawn = loss(jnp.einsum("be,bke->bk", question, others[drawn]), jnp.zeros((), bool))
    total = jnp.sum(jnp.where(shard.where, of_own, 0)) + jnp.sum(jnp.where(wrong, of_drawn, 0))
    count = jnp.sum(shard.where) + jnp.sum(wrong)
    return shard.psum(total) / jnp.maximum(shard.psum(count), 1), {}


def draw_others(keys: Array, count: int) -> Array:
    """For each row of a batch, other rows of it, with repetition: int32 [B, count] from keys [B] of the whole batch."""
    size = keys.shape[0]
    steps = jax.vmap(lambda key: jax.random.randint(key, (count,), 1, max(size, 2)))(keys)
    return (jnp.arange(size)[:, None] + steps) % size
