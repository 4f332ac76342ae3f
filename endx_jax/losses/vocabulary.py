r"""Negative log-likelihood of words over a large vocabulary, without an array of all scores.

With 30,522 words, the scores of one token take 122 kB, and a decoder's softmax costs more than the rest of it. The loss

$$ -\sum_{n,k} c_{nk} \log softmax(s_n)_{w_{nk}} = \sum_n c_n \log \sum_v e^{s_{nv}} - \sum_{n,k} c_{nk} s_{n w_{nk}},
\quad s_n = K h_n + b, \quad c_n = \sum_k c_{nk} $$

is computed in two parts. The second part needs only the rows of K that belong to the words. The first part is a loop
over tiles of n. As it is a sum, the gradient of each tile is computed with its value from the same scores, and only the
gradients of h, K and b are stored (as in Hsu et al. 2024, arXiv 2410.10989). So there are three products per tile and
none in the backward pass. Rows with c_n = 0 are sorted last and not computed.
"""

import functools

import jax
import jax.numpy as jnp

from endx_jax.checks import check_arrays, check_positive
from endx_jax.numerics import at_least_float32

Array = jax.Array

# Rows of a tile. With 30,522 words, its scores take 31 MB; larger tiles are not faster on two CPU cores.
TILE = 256


def vocabulary_nll(
    hidden: Array, kernel: Array, bias: Array, words: Array, weights: Array, *, tile: int = TILE
) -> tuple[Array, dict[str, Array]]:
    """Computes the weighted sum of -log p(word), where p(. | n) = softmax(kernel h_n + bias).

    For sequences, n is a token and K is 1. For bags of words, n is a text, and all its words share one softmax.

    Args:
      hidden: states h [N, W]. Products are in this dtype, sums at least in float32.
      kernel: output embeddings [V, W].
      bias: [V].
      words: int32 [N, K], in [0, V) if the weight is not zero.
      weights: weights [N, K] of the words, without a gradient; 0 for padding, whose values are ignored.
      tile: maximum number, above 0, of rows whose scores are in memory at a time.

    Returns:
      A tuple (loss, metrics). The loss is a sum in nats, at least float32, so that chunks of a batch can be added. The
      metric `words` is the sum of the weights.

    Examples:
      >>> hidden, kernel, bias = jnp.zeros((2, 2)), jnp.ones((4, 2)), jnp.zeros(4)
      >>> words, weights = jnp.array([[0], [3]]), jnp.ones((2, 1))
      >>> loss, metrics = losses.vocabulary_nll(hidden, kernel, bias, words, weights)
      >>> print(f"{loss:.4f}", metrics["words"])  # 2 log(4): each of four words is equally probable
      2.7726 2.0
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
    check_positive("tile", tile)
    weights = jax.lax.stop_gradient(at_least_float32(weights))
    if not len(hidden):
        return jnp.zeros((), at_least_float32(hidden).dtype), {"words": jnp.sum(weights)}
    counts = weights != 0
    # Replace padding by zeros before the products: a NaN would reach the gradients even if the sums exclude it.
    hidden = jnp.where(jnp.any(counts, axis=1, keepdims=True), hidden, 0)
    words = jnp.where(counts, words, 0)
    scores = jnp.einsum("nw,nkw->nk", hidden, kernel[words].astype(hidden.dtype), **_exact(hidden)) + bias[words]
    loss = _log_partitions(hidden, kernel, bias, jnp.sum(weights, axis=1), tile) - jnp.sum(weights * scores)
    return loss, {"words": jnp.sum(weights)}


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _log_partitions(hidden: Array, kernel: Array, bias: Array, weights: Array, tile: int) -> Array:
    """Computes sum_n weights_n log sum_v exp(kernel h_n + bias)_v for constant weights [N]."""
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
        to_bias += jnp.sum(scale * shares, axis=0)
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
    """Returns the number of tiles to compute, and a function from a tile's number to its rows, weights and indices."""
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
    """Returns matmul arguments for products of x: the highest precision, accumulated at least in float32."""
    return {"precision": jax.lax.Precision.HIGHEST, "preferred_element_type": at_least_float32(x).dtype}
