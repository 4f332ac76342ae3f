r"""Distillation of a teacher's scores for listed candidates: each question's right answer and its hard negatives.

With student scores s_j and teacher scores t_j of a question's candidates, where 0 is the right answer:

| loss | of a question | source |
|---|---|---|
| `margin_mse` | mean over j > 0 of ((s_0 - s_j) - (t_0 - t_j))^2 | Hofstätter et al. 2020, arXiv 2010.02666 |
| `listwise_kl` | KL(softmax(t) \|\| softmax(s)) | RocketQAv2 (Ren et al. 2021, arXiv 2110.07367), BGE-M3 |
"""

import jax
import jax.numpy as jnp

from endx_jax.losses.pairs import included_scores
from endx_jax.losses.rows import softmax_divergence
from endx_jax.losses.shard import AxisName, batch_mean

Array = jax.Array


def margin_mse(
    scores: Array, teacher: Array, *, where: Array | None = None, axis_name: AxisName = None
) -> tuple[Array, dict[str, Array]]:
    """Computes the mean squared difference of the student's and the teacher's margins (MarginMSE).

    Margins are not divided by a temperature: the student's scores must have the teacher's range.

    Args:
      scores: the student's scores [B, 1 + K], those of the right answers in column 0.
      teacher: the teacher's scores [B, 1 + K], without a gradient.
      where: bool [B, 1 + K], candidates to include. Other scores may be NaN, and rows whose column 0 is excluded are
        ignored. None means all.
      axis_name: inside `jax.shard_map`, the mesh axes over which the rows are split.

    Returns:
      A tuple (loss, metrics). The loss is the mean over all included pairs of a question and a negative, zero if there
      are none. The metric `teacher_agreement` is the fraction of these pairs whose margins have the same sign.

    Examples:
      >>> scores, teacher = jnp.array([[3.0, 1.0]]), jnp.array([[9.0, 6.0]])
      >>> loss, metrics = losses.margin_mse(scores, teacher)
      >>> print(loss, metrics["teacher_agreement"])  # margins 2 and 3, of the same sign
      1.0 1.0
    """
    where, scores, teacher = included_scores(where, scores=scores, teacher=jax.lax.stop_gradient(teacher))
    squares = jnp.square(_margins(scores) - _margins(teacher))
    return batch_mean(squares, where[:, 1:], axis_name), _agreement(scores, teacher, where, axis_name)


def listwise_kl(
    scores: Array, teacher: Array, *, where: Array | None = None, axis_name: AxisName = None
) -> tuple[Array, dict[str, Array]]:
    """Computes the divergence of the student's distribution over each question's candidates from the teacher's.

    Both are the softmax of the scores, which the caller divides by temperatures. Arguments and metrics are those
    of `margin_mse`.

    Returns:
      A tuple (loss, metrics). The loss, in nats, is the mean over the questions with two or more candidates.

    Examples:
      >>> scores, teacher = jnp.array([[1.0, 0.0]]), jnp.array([[5.0, 5.0]])
      >>> print(f"{losses.listwise_kl(scores, teacher)[0]:.4f}")  # KL of (0.731, 0.269) from (0.5, 0.5)
      0.1201
    """
    where, scores, teacher = included_scores(where, scores=scores, teacher=jax.lax.stop_gradient(teacher))
    divergences = jax.vmap(softmax_divergence)(scores, teacher, where)
    loss = batch_mean(divergences, jnp.any(where[:, 1:], axis=1), axis_name)
    return loss, _agreement(scores, teacher, where, axis_name)


MARGIN_MSE, KL = "margin_mse", "listwise_kl"
DISTILLATIONS = {MARGIN_MSE: margin_mse, KL: listwise_kl}


def _margins(scores: Array) -> Array:
    return scores[:, :1] - scores[:, 1:]


def _agreement(scores: Array, teacher: Array, where: Array, axis_name: AxisName) -> dict[str, Array]:
    same_sign = jnp.sign(_margins(scores)) == jnp.sign(_margins(teacher))
    return {"teacher_agreement": batch_mean(same_sign, where[:, 1:], axis_name)}
