"""Pooling of token encodings [B, L, D] to one vector [B, D] for each text."""

import dataclasses
from collections.abc import Callable, Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp

from endx_jax.models.config_keys import MOST_SIZE
from endx_jax.numerics import at_least_float32
from endx_jax.settings import key

Array = jax.Array

# Maps encodings [B, L, D] and a mask [B, L] to [B, P]: a module, or a function without parameters.
Pooling = nn.Module | Callable[[Array, Array], Array]

_LOWEST = jnp.finfo(jnp.float32).min  # score of masked tokens; their softmax weight is zero


def mean(encodings: Array, mask: Array) -> Array:
    """Returns the mean over the tokens, special tokens included, in float32; zero for a text without tokens."""
    encodings = at_least_float32(encodings)
    weights = mask.astype(encodings.dtype)
    count = jnp.maximum(jnp.sum(weights, axis=1, keepdims=True), 1)
    return jnp.einsum("bld,bl->bd", encodings, weights, precision=jax.lax.Precision.HIGHEST) / count


def first(encodings: Array, mask: Array) -> Array:
    """Returns the encoding of the first token, BERT's [CLS], in float32."""
    del mask  # the first token is never padding
    return at_least_float32(encodings[:, 0])


def last(encodings: Array, mask: Array) -> Array:
    """Returns the encoding of the last token, in float32; of the first place for a text without tokens."""
    place = jnp.maximum(jnp.sum(mask, axis=1, dtype=jnp.int32) - 1, 0)
    return at_least_float32(jnp.take_along_axis(encodings, place[:, None, None], axis=1)[:, 0])


def weighted_mean(encodings: Array, mask: Array) -> Array:
    """Returns the mean over the tokens with their positions, from 1 on, as weights (Muennighoff 2022), in float32."""
    encodings = at_least_float32(encodings)
    weights = mask * (1 + jnp.arange(mask.shape[1], dtype=encodings.dtype))[None]
    total = jnp.maximum(jnp.sum(weights, axis=1, keepdims=True), 1)
    return jnp.einsum("bld,bl->bd", encodings, weights, precision=jax.lax.Precision.HIGHEST) / total


def every_token(encodings: Array, mask: Array) -> Array:
    """Returns the encodings of all tokens, [B, L, D], in float32, for late interaction."""
    del mask  # `TokenChoice` says which of them count
    return at_least_float32(encodings)


POOLINGS: Mapping[str, Callable[[Array, Array], Array]] = {
    "mean": mean,
    "first": first,
    "last": last,
    "weighted_mean": weighted_mean,
    "tokens": every_token,
}


@dataclasses.dataclass(frozen=True)
class MultiHopSettings:
    """Settings of multi-hop pooling, `config.model.multi_hop`."""

    hops: int = key(10, "Hops of multi_hop pooling, r (Lin et al. 2017: 30; ENDX: unstated).", least=1, most=MOST_SIZE)
    width: int = key(
        256, "Hidden width of multi_hop pooling, d_a (Lin et al. 2017: 350; ENDX: unstated).", least=1, most=MOST_SIZE
    )


class MultiHopAttention(nn.Module):
    """Structured self-attention with several hops, A = softmax(W2 tanh(W1 H^T)) (Lin et al. 2017), in float32.

    Lin et al. flatten the hops; their mean keeps width and scale.
    """

    hops: int = 10
    width: int = 256

    @nn.compact
    def __call__(self, encodings: Array, mask: Array) -> Array:
        """Maps encodings [B, L, D] to the mean of the hops [B, D]; zero for a text without tokens."""
        encodings = at_least_float32(encodings)
        draw = nn.initializers.glorot_uniform()
        hidden_kernel = self.param("hidden_kernel", draw, (encodings.shape[-1], self.width))
        hop_kernel = self.param("hop_kernel", draw, (self.width, self.hops))
        highest = jax.lax.Precision.HIGHEST
        hidden = jnp.tanh(jnp.matmul(encodings, hidden_kernel, precision=highest))
        scores = jnp.where(mask[:, :, None], jnp.matmul(hidden, hop_kernel, precision=highest), _LOWEST)
        attention = jnp.where(mask[:, :, None], jax.nn.softmax(scores, axis=1), 0)  # [B, L, r]
        return jnp.mean(jnp.einsum("blr,bld->brd", attention, encodings, precision=highest), axis=1)
