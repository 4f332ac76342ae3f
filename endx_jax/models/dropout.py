"""Dropout with one PRNG key for each example and for each token.

A token's mask depends on its example's key and its position only. So splitting a batch over devices or chunks, padding
it further, or concatenating its texts never changes a mask. Random bits are numbered in row-major order, so an array
whose *first* axis is padded gets the same bits at the same position for any padded length.
"""

import jax
import jax.numpy as jnp

Array = jax.Array


def example_keys(key: Array, step: Array, count: int) -> Array:
    """Returns keys [count] of the global batch's rows as a function of (key, step, row)."""
    return fold(jnp.broadcast_to(jax.random.fold_in(key, step), (count,)), jnp.arange(count))


def fold(keys: Array, data: int | Array) -> Array:
    """Folds a number, or numbers [B], into keys [B]."""
    return jax.vmap(jax.random.fold_in)(keys, jnp.broadcast_to(jnp.asarray(data, jnp.uint32), keys.shape))


def position_keys(keys: Array, length: int) -> Array:
    """Returns keys [B, L] of the positions of B texts, given the texts' keys [B]."""
    return jax.vmap(fold, (None, 0), 1)(keys, jnp.arange(length))


def dropout(x: Array, keys: Array | None, rate: float) -> Array:
    """Zeroes entries of x [..., D] with probability `rate` and scales the others by 1 / (1 - rate).

    Args:
      x: token vectors [..., D].
      keys: PRNG keys [...], one for each token (see `Layout.token_keys`); None disables dropout.
      rate: dropout probability in [0, 1).
    """
    if keys is None or rate == 0.0:
        return x
    keep = jax.vmap(lambda key: jax.random.bernoulli(key, 1.0 - rate, x.shape[-1:]))(keys.reshape(-1))
    return jnp.where(keep.reshape(x.shape), x / (1.0 - rate), jnp.zeros((), x.dtype))


def attention_dropout(weights: Array, keys: Array | None, rate: float) -> Array:
    """Applies dropout to attention weights [B, H, L, M], where both L and M may be padded.

    Only one padded axis can come first, so each query position has its own key.
    """
    if keys is None or rate == 0.0:
        return weights
    _, heads, queries, memory = weights.shape

    def row(key, index):
        return jax.random.bernoulli(jax.random.fold_in(key, index), 1.0 - rate, (memory, heads))

    keep = jax.vmap(jax.vmap(row, (None, 0)), (0, None))(keys, jnp.arange(queries))  # [B, L, M, H]
    return jnp.where(jnp.moveaxis(keep, -1, 1), weights / (1.0 - rate), jnp.zeros((), weights.dtype))
