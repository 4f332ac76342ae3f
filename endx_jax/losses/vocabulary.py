r"""Negative log-likelihood of words over a large vocabulary, without an array of all scores.

With 30,522 words the scores of one token take 122 kB, and a decoder's softmax costs more than the rest of it. So

$$ -\sum_{n,k} c_{nk} \log softmax(s_n)_{w_{nk}} = \sum_n c_n \log \sum_v e^{s_{nv}} - \sum_{n,k} c_{nk} s_{n w_{nk}},
\quad s_n = K h_n + b, \quad c_n = \sum_k c_{nk} $$

is computed in two parts. The second needs only the rows of K of the given words. The first is computed in tiles of n:
since it is a sum, each tile's gradient is computed beside its value, from the same scores, and only gradients of h, K
and b are kept (as in Hsu et al. 2024, arXiv 2410.10989). Scores are computed once: three products per tile, and none in
the backward pass. The n with c_n = 0 are sorted to the end and skipped.
"""

import functools

import jax
import jax.numpy as jnp

from endx_jax.checks import check_arrays
from endx_jax.errors import EndxError
from endx_jax.numerics import at_least_float32

Array = jax.Array

# Rows of a tile: its scores take 31 MB at 30,522 words, and on two CPU cores products are as fast as with more.
TILE = 256


def vocabulary_nll(
    hidden: Array, kernel: Array, bias: Array, words: Array, weights: Array, *, tile: int = TILE
) -> tuple[Array, dict[str, Array]]:
    """Computes the weighted sum of -log p(word), where p(. | n) = softmax(kernel h_n + bias).

    For a sequence, n is a token and K is 1. For a bag of words, n is a text, and all its words share one softmax.

    Args:
      hidden: [N, W]. Products are in its dtype, sums in float32 at least.
      kernel: [V, W].
      bias: [V].
      words: int32 [N, K], in [0, V) where the weight is not zero.
      weights: float [N, K], the weight of each word; 0 for padding, whose words are ignored. Not differentiated.
      tile: maximum number of rows whose scores are in memory at a time.

    Returns:
      The loss, a scalar, float32 at least: a sum, since chunks of a batch are summed; and metrics: `words`, the sum of
      the weights.

    Raises:
      EndxError: for shapes that do not agree, or a `tile` that is not positive.
    """
    check_arrays(
        {
            "hidden": (hidden, "[N, W]"),
            "kernel": (kernel, "[V, W]"),
            "bias": (bias, "[V]"),
            "words": (words, "integer [N, K]"),
            "weights": (weights, "[N, K]"),
        }
    )
    if tile < 1:
        raise EndxError(f"tile is {tile}; a tile of scores must have a row at least")
    weights = jax.lax.stop_gradient(at_least_float32(weights))
    counts = weights != 0
    # Zeros stand in for what does not count before any product: left out of sums alone, NaN would reach the gradients.
    hidden = jnp.where(jnp.any(counts, axis=1, keepdims=True), hidden, 0)
    words = jnp.where(counts, words, 0)
    own = jnp.einsum("nw,nkw->nk", hidden, kernel[words].astype(hidden.dtype), **_exact(hidden)) + bias[words]
    loss = _log_partitions(hidden, kernel, bias, jnp.sum(weights, axis=1), tile) - jnp.sum(weights * own)
    return loss, {"words": jnp.sum(weights)}


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _log_partitions(hidden: Array, kernel: Array, bias: Array, weights: Array, tile: int) -> Array:
    """Computes sum_n weights_n log sum_v exp(kernel h_n + bias)_v, with constant weights [N]."""
    tiles, gather = _tiles(hidden, weights, tile)

    def add(number, total):
        rows, counts, _ = gather(number)
        return total + jnp.sum(counts * jax.nn.logsumexp(_scores(rows, kernel, bias), axis=1))

    return jax.lax.fori_loop(0, tiles, add, jnp.zeros((), at_least_float32(hidden).dtype))


def _forward(hidden, kernel, bias, weights, tile):
    tiles, gather = _tiles(hidden, weights, tile)

    def add(number, carry):
        total, to_hidden, to_kernel, to_bias = carry
        rows, counts, places = gather(number)
        scores = _scores(rows, kernel, bias)
        highest = jnp.max(scores, axis=1, keepdims=True)
        shares = jnp.exp(scores - highest)
        sums = jnp.sum(shares, axis=1, keepdims=True)
        total += jnp.sum(counts * (highest + jnp.log(sums))[:, 0])
        scale = counts[:, None] / sums
        to_bias += (scale.T @ shares)[0]
        narrow = shares.astype(hidden.dtype)
        to_rows = jnp.matmul(narrow, kernel.astype(hidden.dtype), **_exact(hidden)) * scale
        to_kernel += jnp.matmul(narrow.T, (rows * scale).astype(hidden.dtype), **_exact(hidden))
        to_hidden = to_hidden.at[places].set(to_rows.astype(hidden.dtype), mode="drop")
        return total, to_hidden, to_kernel, to_bias

    wide = at_least_float32(hidden).dtype
    none = jnp.zeros_like(hidden), jnp.zeros(kernel.shape, wide), jnp.zeros(bias.shape, wide)
    total, to_hidden, to_kernel, to_bias = jax.lax.fori_loop(0, tiles, add, (jnp.zeros((), wide), *none))
    return total, (to_hidden, to_kernel.astype(kernel.dtype), to_bias.astype(bias.dtype))


def _backward(tile, gradients, cotangent):
    del tile
    return *jax.tree.map(lambda gradient: (cotangent * gradient).astype(gradient.dtype), gradients), None


_log_partitions.defvjp(_forward, _backward)


def _tiles(hidden: Array, weights: Array, tile: int):
    """Returns the number of tiles that count, and a function from a tile's number to its rows, weights and indices."""
    size = min(tile, len(hidden))
    order = jnp.argsort(weights == 0, stable=True)
    order = jnp.pad(order, (0, -len(hidden) % size), constant_values=len(hidden))
    counting = jnp.sum(weights != 0)

    def gather(number):
        places = jax.lax.dynamic_slice_in_dim(order, number * size, size)
        return (
            hidden.at[places].get(mode="fill", fill_value=0),
            weights.at[places].get(mode="fill", fill_value=0),
            places,
        )

    return -(-counting // size), gather


def _scores(rows: Array, kernel: Array, bias: Array) -> Array:
    return jnp.matmul(rows, kernel.T.astype(rows.dtype), **_exact(rows)) + bias[None]


def _exact(x: Array) -> dict:
    """Returns the precision of products of x: at least that of x, accumulated in float32 or more."""
    return {"precision": jax.lax.Precision.HIGHEST, "preferred_element_type": at_least_float32(x).dtype}
