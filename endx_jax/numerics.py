"""Numerically safe arithmetic that several packages use.

Functions of JAX arrays import JAX when they are called, since packages that read data need only those of NumPy.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from jax import Array

LARGEST_CODE = 127


def round_up(number, multiple: int):
    """Rounds an integer or an array of integers up to a multiple of `multiple`."""
    return -(-number // multiple) * multiple


def leading_size(tree: Any) -> int:
    """Returns the length of the leading axis of a tree's arrays."""
    import jax

    return jax.tree.leaves(tree)[0].shape[0]


def power_of_two(number: int) -> int:
    """Returns the smallest power of two that is at least `number`, which is at least 1."""
    return 1 << (number - 1).bit_length()


def rung(number: int, parts: int, step: int = 1) -> int:
    """Rounds a size up to one of few, for which programs are compiled: `parts` // 2 between neighbouring powers of two.

    Sizes are multiples of `step` at least.
    """
    return round_up(number, max(step, power_of_two(number) // parts))


def at_least_float32(x: "Array") -> "Array":
    """Casts half-precision arrays to float32; returns float32 and float64 arrays unchanged."""
    import jax.numpy as jnp

    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def l2_normalize(x: "Array", epsilon: float = 1e-6) -> "Array":
    """Scales the last axis to unit L2 norm: x / sqrt(max(sum x^2, epsilon^2)); zero vectors stay zero.

    The maximum is inside the root, so that the gradient at zero is finite. The result is at least float32, in which the
    squares of entries up to 1e18 do not overflow.
    """
    import jax
    import jax.numpy as jnp

    x = at_least_float32(x)
    squares = jnp.sum(jnp.square(x), axis=-1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.maximum(squares, epsilon**2))


def unit_rows(x: np.ndarray) -> np.ndarray:
    """Scales the rows of a NumPy array to unit norm on the host; zero rows stay zero."""
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12)


class Quantized(NamedTuple):
    """Embeddings in 8 bits, a quarter of the memory of float32; row i is `codes[i] * scales[i]`.

    Attributes:
      codes: int8 [..., E], from -127 to 127.
      scales: float32 [...], the largest magnitude of each row divided by 127; not finite if an entry of the row is not.
    """

    codes: "Array | np.ndarray"
    scales: "Array | np.ndarray"


def quantize(embeddings: "Array | np.ndarray", xp: Any = None) -> Quantized:
    """Quantizes embeddings [..., E] symmetrically to 255 levels per row; with `xp=np` on the host.

    The error of an entry is at most half a step, which is 1/254 of the largest magnitude in its row. Zero stays zero.
    """
    if xp is None:
        import jax.numpy as xp
    scales = xp.max(xp.abs(embeddings), axis=-1).astype(xp.float32) / LARGEST_CODE
    steps = embeddings / xp.where(scales > 0, scales, 1)[..., None]
    return Quantized(xp.round(steps).astype(xp.int8), scales)


def signs(embeddings: np.ndarray) -> np.ndarray:
    """Returns the signs of embeddings [N, E] as bits: uint32 [N, W], W = E / 32 rounded up.

    Bit i of word w is 1 if dimension 32 w + i is above 0. Bits beyond E are 0.
    """
    bits = np.packbits(embeddings > 0, axis=1, bitorder="little")
    return np.pad(bits, [(0, 0), (0, -bits.shape[1] % 4)]).view("<u4")


def dequantize(values: Any) -> Any:
    """Returns a `Quantized` as float32 [..., E], in NumPy or JAX like its codes; returns other values unchanged."""
    return values.codes.astype(np.float32) * values.scales[..., None] if isinstance(values, Quantized) else values
