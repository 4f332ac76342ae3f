"""Losses of scored pairs: each question's right answer against its own wrong answers."""

import jax
import jax.numpy as jnp

from endx_jax.checks import check_arrays
from endx_jax.errors import EndxError
from endx_jax.losses.shard import batch_mean
from endx_jax.numerics import at_least_float32

Array = jax.Array


def pair_softmax(scores: Array, *, where: Array | None = None) -> tuple[Array, dict[str, Array]]:
    """Computes the cross-entropy of each question's right answer among its candidates.

    Args:
      scores: [B, 1 + K], with the right answer in column 0 and K >= 1.
      where: bool [B, 1 + K], candidates to include, always true in column 0. Other scores may be NaN. None means all.

    Returns:
      A tuple (loss, metrics). The loss is the mean over the questions. The metrics are `pair_accuracy`, the fraction of
      questions whose right answer scores higher than all wrong ones, and `negatives`, the mean number of wrong ones.

    Examples:
      >>> loss, metrics = losses.pair_softmax(jnp.array([[1.0, 0.0]]))
      >>> print(f"{loss:.4f}", metrics["pair_accuracy"])  # log(1 + exp(-1))
      0.3133 1.0
    """
    where, scores = included_scores(where, scores=scores)
    # log(1 + sum of exp(margins)), without the right answer's exp(0), keeps losses near 0 precise.
    margins = scores[:, 1:] - scores[:, :1]
    margins = jnp.where(where[:, 1:], margins, jnp.finfo(margins.dtype).min / 2)
    return jnp.mean(jax.nn.softplus(jax.nn.logsumexp(margins, axis=1))), _metrics(scores, where)


def pair_binary(scores: Array, *, where: Array | None = None) -> tuple[Array, dict[str, Array]]:
    """Computes the binary cross-entropy of each pair, whose score is the logit of being right.

    Arguments and metrics are those of `pair_softmax`; the loss is the mean over the included pairs.

    Examples:
      >>> loss, metrics = losses.pair_binary(jnp.array([[1.0, 0.0]]))
      >>> print(f"{loss:.4f}")  # the mean of log(1 + exp(-1)) and log(2)
      0.5032
    """
    where, scores = included_scores(where, scores=scores)
    sign = jnp.where(jnp.arange(scores.shape[1]) == 0, -1, 1)[None]
    return batch_mean(jax.nn.softplus(sign * scores), where), _metrics(scores, where)


def _metrics(scores: Array, where: Array) -> dict[str, Array]:
    wrong = jnp.max(scores[:, 1:], axis=1, where=where[:, 1:], initial=-jnp.inf)
    return {"pair_accuracy": jnp.mean(scores[:, 0] > wrong), "negatives": jnp.mean(jnp.sum(where, axis=1) - 1.0)}


def included_scores(where: Array | None, **scores: Array) -> tuple[Array, ...]:
    """Returns bool [B, 1 + K], the candidates to include, and scores of this shape, at least float32, 0 elsewhere."""
    check_arrays({**{name: (x, "[B, N]") for name, x in scores.items()}, "where": (where, "bool [B, N]")})
    shape = scores["scores"].shape
    if shape[1] < 2:
        raise EndxError(f"scores has shape {shape}; each row needs a right and at least one wrong answer")
    where = jnp.ones(shape, bool) if where is None else where & where[:, :1]
    return where, *(jnp.where(where, at_least_float32(x), 0) for x in scores.values())
