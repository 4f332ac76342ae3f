"""Dropout with one PRNG key for each example and for each token.

A token's mask depends on its example's key and its position only. So splitting a batch over devices or chunks, padding
it further, or concatenating its texts never changes a mask. Random bits are numbered in row-major order, so an array
whose *first* axis is padded gets the same bits at the same position for any padded length.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array

GOLDEN = np.uint32(0x9E3779B9)  # factor of the numbers that are hashed


def example_keys(key: Array, step: Array, count: int) -> Array:
    """Returns keys [count] of the global batch's rows as a function of (key, step, row)."""
    return fold(jnp.broadcast_to(jax.random.fold_in(key, step), (count,)), jnp.arange(count))


def fold(keys: Any, data: int | Array) -> Any:
    """Folds a number, or numbers [B], into keys [B]; None, without dropout, stays None."""
    if keys is None:
        return None
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

    def kept(of_keys: Array) -> Array:
        first, second = of_keys[..., None]
        number = jnp.arange(x.shape[-1], dtype=jnp.uint32).reshape((1,) * keys.ndim + x.shape[-1:])
        return hashed(number * GOLDEN + first, second) >= np.uint32(round(rate * 2**32))

    return _drop(kept, rate, x, words(keys))


def attention_dropout(weights: Array, keys: Array | None, rate: float) -> Array:
    """Applies dropout to attention weights [B, H, L, M], where both L and M may be padded.

    Each query position has its own key, with which pairs of (memory position, two heads) are hashed; the heads have one
    half of the hash each.
    """
    if keys is None or rate == 0.0:
        return weights
    _, heads, queries, memory = weights.shape

    def kept(of_keys: Array) -> Array:
        head = jnp.arange(heads, dtype=jnp.uint32)[None, :, None, None]
        place = jnp.arange(memory, dtype=jnp.uint32)[None, None, None]
        first, second = of_keys[:, :, None, :, None]
        number = place * np.uint32(-(-heads // 2)) + head // 2
        return kept_half(hashed(number * GOLDEN + first, second), head % 2, rate)

    return _drop(kept, rate, weights, words(position_keys(keys, queries)))


@functools.partial(jax.checkpoint, prevent_cse=False, static_argnums=(0, 1))
def _drop(kept: Callable[[Array], Array], rate: float, x: Array, of_keys: Array) -> Array:
    """Zeroes x where kept(of_keys) is false. The mask is drawn again for the gradient, so that it is not stored."""
    return jnp.where(kept(of_keys), x / (1.0 - rate), jnp.zeros((), x.dtype))


def words(keys: Array) -> Array:
    """Returns the two words of keys [...], which are threefry's, as uint32 [2, ...]."""
    return jnp.moveaxis(jax.random.key_data(keys), -1, 0)


def hashed(number: Array, second: Array) -> Array:
    """Hashes GOLDEN times a number plus the first word of a key, uint32 [...], with the second word of the key.

    It is one to one for each key. Its steps are those of Wellons' `lowbias32`, with the key as the first multiplier.
    Threefry for each entry would take several times as long.
    """
    number = (number ^ (number >> 16)) * (second | np.uint32(1))
    number = (number ^ (number >> 15)) * np.uint32(0x846CA68B)
    return number ^ (number >> 16)


def kept_half(hashes: Array, half: Array | int, rate: float) -> Array:
    """Returns true with probability 1 - rate by the lower (0) or upper (1) half of hashes, uint32 [...]."""
    # The half is compared in the upper bits of a signed number, whatever is in the lower ones.
    bits = (hashes << jnp.uint32(16 * (1 - half))).astype(jnp.int32)
    return bits >= np.int32((round(rate * 2**16) - 2**15) * 2**16)
