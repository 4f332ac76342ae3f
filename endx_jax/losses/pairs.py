"""Losses of scored pairs: each question has one right and several wrong answers."""

import jax
import jax.numpy as jnp

from endx_jax.checks import check_arrays
from endx_jax.errors import EndxError
from endx_jax.numerics import at_least_float32, masked_mean

Array = jax.Array


def pair_softmax(scores: Array, *, where: Array | None = None) -> tuple[Array, dict[str, Array]]:
    """Computes the cross-entropy of selecting each question's right answer among its candidates.

    Args:
      scores: [B, 1 + K], the right answer's first; K at least 1.
      where: bool [B, 1 + K], the candidates that count; the right ones do. Others may be NaN. None: all.

    Returns:
      The loss, a scalar, the mean over the questions; and metrics: `pair_accuracy`, the share of the
      questions whose right answer scores higher than all its wrong ones, and `negatives`, the mean number of those.
    """
    _check(scores, where)
    scores = at_least_float32(scores)
    # The right answer's own term would be exp(0): it is taken out, so that losses near 0 keep their digits.
    margins = scores[:, 1:] - scores[:, :1]
    if where is not None:
        margins = jnp.where(where[:, 1:], margins, jnp.finfo(margins.dtype).min / 2)
    return jnp.mean(jax.nn.softplus(jax.nn.logsumexp(margins, axis=1))), _metrics(scores, where)


def pair_binary(scores: Array, *, where: Array | None = None) -> tuple[Array, dict[str, Array]]:
    """Computes the binary cross-entropy of each pair; a score is the logit that the pair is right.

    The arguments are those of `pair_softmax`.

    Returns:
      The loss, a scalar, the mean over the pairs that count; and metrics: `pair_accuracy`, the share of the
      questions whose right answer scores higher than all its wrong ones, and `negatives`, the mean number of those.
    """
    _check(scores, where)
    counts = jnp.ones(scores.shape, bool) if where is None else where
    sign = jnp.where(jnp.arange(scores.shape[1]) == 0, -1, 1)[None]
    loss = masked_mean(jax.nn.softplus(sign * jnp.where(counts, at_least_float32(scores), 0)), counts)
    return loss, _metrics(scores, counts)


def _metrics(scores: Array, where: Array | None) -> dict[str, Array]:
    counts = jnp.ones(scores.shape, bool) if where is None else where
    wrong = jnp.max(jnp.where(counts, scores, -jnp.inf)[:, 1:], axis=1, initial=-jnp.inf)
    return {
        "pair_accuracy": jnp.mean(scores[:, 0] > wrong),
        "negatives": jnp.mean(jnp.sum(counts, axis=1) - 1.0),
    }


def _check(scores: Array, where: Array | None) -> None:
    check_arrays({"scores": (scores, "[B, N]"), "where": (where, "bool [B, N]")})
    if scores.shape[1] < 2:
        raise EndxError(f"scores has shape {scores.shape}; every question needs its right answer and a wrong one")
