r"""Losses of squared distances (RR, section 3.2): batch-hard triplets, and quadratic regression of right pairs.

RR is "Text Embeddings for Retrieval from a Large Knowledge Base". For an anchor q, its farthest right candidate p+ and
its nearest negative p- in the batch (batch-hard mining, Hermans et al. 2017), the triplet loss is:

$$ L = [\|q - p^+\|^2 - \|q - p^-\|^2 + m]^+ $$

Negatives are those of the in-batch softmax. The anchor's own answer, answers equal to it, and known positives are right
candidates.

The hardest candidates are found without a gradient; the loss is then a function of three embeddings.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from endx_jax.losses.arguments import check_batch
from endx_jax.losses.false_negatives import Ids, negatives_of_answer, negatives_of_question, pair_ids
from endx_jax.losses.pair_scores import pair_metrics
from endx_jax.losses.rows import dot, mean_over_rows
from endx_jax.losses.shard import AxisName, all_gather, batch_mean, included_rows
from endx_jax.losses.softmax import WEIGHTS
from endx_jax.settings import check_choice

Array = jax.Array
Metrics = dict[str, Array]
Negatives = Callable[[Ids, Ids], Array]


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
    """Computes the triplet loss with the hardest right candidate and the hardest negative of each anchor.

    Args:
      question: question embeddings [B, E]. Distances are at least float32.
      answer: answer embeddings [B, E]; row i is a right answer of question i.
      margin: margin m between squared distances.
      question_id: int32 [B], equal for equal questions; -1 if unknown.
      answer_id: int32 [B], equal for equal answers; -1 if unknown.
      positive_ids: int32 [B, P], ids of all right answers of each question, padded with -1.
      direction: `question_to_answer` (questions are anchors, answers are candidates), `answer_to_question`, or the
        `sum` or `mean` of both.
      where: bool [B], pairs to include; other pairs are neither anchors nor candidates, even if NaN.
      tile: rows of distances in memory at a time. None computes an array [B, B]. Both give the same values.
      axis_name: as in `in_batch_softmax`.

    Returns:
      A tuple (loss, metrics). The loss is the mean over the included pairs, zero if there are none; anchors without a
      negative have loss zero. The metrics have no gradient and describe the anchors of the first direction:
      `in_batch_accuracy`, the fraction whose nearest negative is farther than their farthest right candidate;
      `active_fraction`, the fraction with a positive loss; and `masked_fraction`, the fraction of off-diagonal pairs
      that are not negatives.

    Examples:
      >>> question, answer = jnp.array([[0.0, 0.0], [1.0, 0.0]]), jnp.array([[0.0, 0.0], [0.0, 1.0]])
      >>> loss, metrics = losses.triplet(question, answer, margin=0.2)
      >>> print(f"{loss:.4f}", metrics["active_fraction"])  # the mean of [0 - 1 + 0.2]^+ and [2 - 1 + 0.2]^+
      0.6000 0.5
    """
    check_choice("direction", direction, WEIGHTS)
    known: dict = {"question_id": question_id, "answer_id": answer_id, "positive_ids": positive_ids, "where": where}
    check_batch(question=question, answer=answer, **known)
    ids = pair_ids(len(question), axis_name, **known)
    question, answer = (included_rows(x, ids.where) for x in (question, answer))
    forms = (question, answer, negatives_of_question), (answer, question, negatives_of_answer)
    total: Array = jnp.zeros((), question.dtype)
    metrics: Metrics = {}
    for weight, (anchors, candidates, negatives) in zip(WEIGHTS[direction], forms, strict=True):
        if weight:
            shared = *all_gather((candidates, ids), axis_name), jnp.asarray(margin, question.dtype)
            mean, found = mean_over_rows(
                functools.partial(_of_anchor, negatives), (anchors, ids), shared, ids.where, tile, axis_name
            )
            total += weight * mean
            metrics = metrics or found
    return total, metrics


def _of_anchor(negatives: Negatives, row: tuple, shared: tuple) -> tuple[Array, Metrics]:
    """Returns the loss of an anchor and its metrics."""
    (anchor, own), (candidates, others, margin) = row, shared
    negative = negatives(own, others)
    right = own.where & others.where & ~negative
    # |a - c|^2 / 2 without |a|^2 / 2, which all candidates share. argmax and argmin take the first of equal ones.
    constant = jax.lax.stop_gradient(candidates)
    distances = jnp.sum(jnp.square(constant), axis=1) / 2 - dot(jax.lax.stop_gradient(anchor), constant)
    farthest = candidates[jnp.argmax(jnp.where(right, distances, -jnp.inf))]
    nearest = candidates[jnp.argmin(jnp.where(negative, distances, jnp.inf))]
    more = jnp.sum(jnp.square(anchor - nearest)) - jnp.sum(jnp.square(anchor - farthest))
    some = jnp.any(negative)
    loss = jnp.where(some, jnp.maximum(margin - more, 0), 0)
    return loss, pair_metrics((more > 0) | ~some, negative, others) | {"active_fraction": loss > 0}


def quadratic_regression_conditional(
    question: Array, answer: Array, *, margin: float = 0.2, where: Array | None = None, axis_name: AxisName = None
) -> tuple[Array, Metrics]:
    """Computes the quadratic regression conditional loss of right pairs, [d - m]^+ + m [d > m] with d = |q - p|^2.

    This equals d if d exceeds the margin m, else 0. The loss has no negatives: if both sides are trained, equal
    embeddings for all texts minimise it.

    Args:
      question: question embeddings [B, E]. Distances are at least float32.
      answer: answer embeddings [B, E]; row i is a right answer of question i.
      margin: margin m of squared distances.
      where: bool [B], pairs to include. Other pairs may be NaN.
      axis_name: as in `triplet`.

    Returns:
      A tuple (loss, metrics). The loss is the mean over the included pairs, zero if there are none. The metric
      `active_fraction` is the fraction of pairs with a positive loss.

    Examples:
      >>> question, answer = jnp.array([[0.0, 0.0], [1.0, 0.0]]), jnp.array([[0.0, 0.0], [0.0, 1.0]])
      >>> loss, metrics = losses.quadratic_regression_conditional(question, answer, margin=0.2)
      >>> print(f"{loss:.4f}", metrics["active_fraction"])  # squared distances 0 and 2
      1.0000 0.5
    """
    check_batch(question=question, answer=answer, where=where)
    where = pair_ids(len(question), where=where).where
    question, answer = (included_rows(x, where) for x in (question, answer))
    distances = jnp.sum(jnp.square(question - answer), axis=1)
    active = distances > margin
    loss = batch_mean(jnp.where(active, distances, 0), where, axis_name)
    return loss, {"active_fraction": batch_mean(active, where, axis_name)}
