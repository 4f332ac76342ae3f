"""Matching loss of right pairs and sampled wrong pairs (Yu et al. 2020, Eq. 6).

The scores are cosines, with target 1 for right pairs and 0 for wrong pairs: as a regression, which an unofficial port
attributes to the authors, or as a probability, as printed in the paper.
"""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from endx_jax.losses.arguments import check_batch
from endx_jax.losses.false_negatives import negatives_of_question, pair_ids
from endx_jax.losses.rows import dot
from endx_jax.losses.shard import AxisName, all_gather, batch_mean, included_rows
from endx_jax.numerics import l2_normalize
from endx_jax.settings import check_choice

Array = jax.Array

# Minimum probability of the observed class.
EDGE = 1e-6


def squared_error(cosines: Array, right: Array) -> Array:
    """Computes (cosine - y)^2 elementwise, with y = 1 for right pairs and 0 for wrong pairs."""
    return jnp.square(cosines - right)


def binary_cross_entropy(cosines: Array, right: Array) -> Array:
    """Computes -y log p - (1 - y) log(1 - p) elementwise, with p = (1 + cosine) / 2; clips logarithms at log `EDGE`."""
    of_what_is = jnp.where(right, 1 + cosines, 1 - cosines) / 2
    return -jnp.log(jnp.maximum(of_what_is, EDGE))


# Elementwise functions (cosines, bool: pair is right) -> losses.
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
    """Computes the mean loss of each question with its own answer and with answers drawn from the batch.

    Drawn pairs that are known to be right, by any of the ids, are excluded.

    Args:
      question: question embeddings [B, E]; this function computes the cosines, at least in float32.
      answer: answer embeddings [B, E]; row i is the right answer of question i.
      drawn: int32 [B, K], rows of the whole batch with the wrong answers: see `draw_others`.
      kind: a name in `MATCHINGS`.
      question_id: int32 [B], equal for equal questions; -1 if unknown.
      answer_id: int32 [B], equal for equal answers; -1 if unknown.
      positive_ids: int32 [B, P], ids of all right answers of each question, padded with -1.
      where: bool [B], pairs to include. Other pairs may be NaN.
      axis_name: inside `jax.shard_map`, the mesh axes over which the batch is split: see `in_batch_softmax`.

    Returns:
      A tuple (loss, {}). The loss is the mean over all included right and wrong pairs, zero if there are none.

    Examples:
      >>> question, answer = jnp.array([[1.0, 0.0], [0.0, 1.0]]), jnp.array([[2.0, 0.0], [2.0, 0.0]])
      >>> loss, _ = losses.sampled_matching(question, answer, drawn=jnp.array([[1], [0]]))
      >>> print(loss)  # the cosines of the right pairs, whose targets are 1, are 1 and 0; of the drawn ones too
      0.5
    """
    check_choice("kind", kind, MATCHINGS)
    known: dict = {"question_id": question_id, "answer_id": answer_id, "positive_ids": positive_ids, "where": where}
    check_batch(question=question, answer=answer, drawn=drawn, **known)
    ids = pair_ids(len(question), axis_name, **known)
    question, answer = (l2_normalize(included_rows(x, ids.where)) for x in (question, answer))
    others, of_others = jax.tree.map(lambda x: x[drawn], all_gather((answer, ids), axis_name))
    wrong, loss = jax.vmap(negatives_of_question)(ids, of_others), MATCHINGS[kind]
    of_own = loss(jnp.sum(question * answer, axis=1), jnp.ones((), bool))
    of_drawn = loss(jax.vmap(dot)(question, others), jnp.zeros((), bool))
    losses, included = (jnp.concatenate([x[:, None], y], axis=1) for x, y in ((of_own, of_drawn), (ids.where, wrong)))
    return batch_mean(losses, included, axis_name), {}


def draw_others(keys: Array, count: int) -> Array:
    """Draws other rows of the batch for each row, with repetition: int32 [B, count], given keys [B] of all rows."""
    size = keys.shape[0]
    steps = jax.vmap(lambda key: jax.random.randint(key, (count,), 1, max(size, 2)))(keys)
    return (jnp.arange(size)[:, None] + steps) % size
