"""From encodings [B, L, D] of a text's tokens to one vector [B, D]."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from endx_jax.numerics import at_least_float32

Array = jax.Array


def mean(encodings: Array, mask: Array) -> Array:
    """Mean over the real tokens, special tokens included, in float32; zero for a text without any."""
    encodings = at_least_float32(encodings)
    weights = mask.astype(encodings.dtype)
    count = jnp.maximum(jnp.sum(weights, axis=1, keepdims=True), 1)
    return jnp.einsum("bld,bl->bd", encodings, weights, precision=jax.lax.Precision.HIGHEST) / count


def first(encodings: Array, mask: Array) -> Array:
    """The first token's encoding, BERT's [CLS], in float32."""
    del mask  # the first token is always real
    return at_least_float32(encodings[:, 0])


POOLINGS: Mapping[str, Callable[[Array, Array], Array]] = {"mean": mean, "first": first}
