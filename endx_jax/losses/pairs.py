"""Losses of scored pairs: each question's right answer against its own few wrong ones."""

import jax
import jax.numpy as jnp

from endx_jax.numerics import at_least_float32, masked_mean

Array = jax.Array


def pair_softmax(scores: Array, where: Array | None = None) -> Array:
    """Cross-entropy of picking each question's right answer among its candidates.

    Args:
      scores: [B, 1 + K], the right answer's first; K at least 1.
      where: bool [B, 1 + K], the candidates that count; the right ones do. Others may be NaN. None: all.

    Returns:
      A scalar, the mean over the questions.
    """
    scores = at_least_float32(scores)
    # The right answer's own term would be exp(0): it is taken out, so that losses near 0 keep their digits.
    margins = scores[:, 1:] - scores[:, :1]
    if where is not None:
        margins = jnp.where(where[:, 1:], margins, jnp.finfo(margins.dtype).min / 2)
    return jnp.mean(jax.nn.softplus(jax.nn.logsumexp(margins, axis=1)))


def pair_binary(scores: Array, where: Array | None = None) -> Array:
    """Binary cross-entropy of telling right pairs from wrong ones, each by itself: a score is the logit of right.

    The arguments are those of `pair_softmax`.

    Returns:
      A scalar, the mean over the pairs that count.
    """
    counts = jnp.ones(scores.shape, bool) if where is None else where
    sign = jnp.where(jnp.arange(scores.shape[1]) == 0, -1, 1)[None]
    return masked_mean(jax.nn.softplus(sign * jnp.where(counts, at_least_float32(scores), 0)), counts)
