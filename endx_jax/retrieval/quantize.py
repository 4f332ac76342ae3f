"""Embeddings in 8 bits: a quarter of float32's memory, and to be searched as they are."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array

LARGEST = 127


class Quantized(NamedTuple):
    """Embeddings as whole numbers: row i stands for `codes[i] * scales[i]`.

    Attributes:
      codes: int8 [..., E], from -127 to 127.
      scales: float32 [...], the largest magnitude of the row over 127; nan or infinity where the row held one.
    """

    codes: Array | np.ndarray
    scales: Array | np.ndarray


def quantize(embeddings: Array) -> Quantized:
    """Rounds float [..., E] to 255 steps that lie evenly about zero, so wide that the row's largest value is reached.

    A value moves by at most half a step, 1/254 of its row's largest. Zero stays zero.
    """
    scales = jnp.max(jnp.abs(embeddings), axis=-1).astype(jnp.float32) / LARGEST
    steps = embeddings / jnp.where(scales > 0, scales, 1)[..., None]
    return Quantized(jnp.round(steps).astype(jnp.int8), scales)


def dequantize(quantized: Quantized) -> Array | np.ndarray:
    """The embeddings, float32 [..., E], that codes and scales stand for; NumPy from NumPy."""
    return quantized.codes.astype(np.float32) * quantized.scales[..., None]
