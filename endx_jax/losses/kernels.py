r"""Kernels of the geometry alignment (Wang et al. 2021, section 3.4): scores s(u, v) of two embeddings.

The probability of u_j given v_i is the softmax over j of s(u_j, v_i) / temperature, with s:

| kernel | s(u, v) | source |
|---|---|---|
| `inner` | u . v | ENDX Eq. 10 |
| `gaussian` | exp(-\|u - v\|^2 / (2 width)) | ENDX Eq. 9 inside Eqs. 7-8, literally: s lies in (0, 1] |
| `sne` | -\|u - v\|^2 / (2 width) | ENDX Eq. 6 (Hinton and Roweis 2002) |
| `pkt` | log((cos(u, v) + 1) / 2) | Passalis and Tefas 2018: the softmax of log K is K divided by its sum |

`width` is the sigma^2 of ENDX Eqs. 7-8, which use Eq. 9 with 2 sigma^2.

A kernel has two parts, so that whole matrices and tiles use the same arithmetic: operands of rows and of columns,
computed once from the embeddings, with width and temperature included in those of the rows; and the scores of the
operands of some rows and some columns.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from endx_jax.numerics import l2_normalize

Array = jax.Array
Operands = tuple[Array, ...]

KERNELS = ("inner", "gaussian", "sne", "pkt")
WITH_WIDTH = ("gaussian", "sne")

# Minimum of (cos + 1) / 2 in `pkt`, for a finite logarithm of opposite embeddings, like the epsilon in PKT's code.
PKT_FLOOR = 1e-7


class Moments(NamedTuple):
    """Mean and variance of one side's embeddings in one space."""

    mean: Array  # [1, E]
    variance: Array  # [], mean squared distance from the mean


def moments(x: Array, where: Array, total: Callable[[Array], Array]) -> Moments:
    """Computes moments of embeddings [B, E], zero where `where` [B] is false; `total` sums over devices."""
    x = jax.lax.stop_gradient(x)
    count = jnp.maximum(total(jnp.sum(where, dtype=x.dtype)), 1)
    mean = total(jnp.sum(x, axis=0, keepdims=True)) / count
    squares = jnp.where(where[:, None], jnp.square(x - mean), 0)
    return Moments(mean, total(jnp.sum(squares)) / count)


def mean_squared_distance(given: Moments, columns: Moments) -> Array:
    """Returns the mean of |u - v|^2 over all pairs, from the moments of u and v; 1 if all points coincide."""
    distance = given.variance + columns.variance + jnp.sum(jnp.square(given.mean - columns.mean))
    # Points that coincide up to rounding have equal scores for any width.
    rounding = (8 * jnp.finfo(distance.dtype).eps) ** 2 * jnp.sum(jnp.square(given.mean))
    return jnp.where(distance > rounding, distance, 1)


def row_operands(kernel: str, given: Array, own: Array, temperature: float | Array, width: float | Array) -> Operands:
    """Returns the operands of rows.

    Args:
      kernel: one of KERNELS.
      given: [R, E], the v of each row.
      own: [R, E], the u of the same pair as each v; v itself if both are of one side.
      temperature: divisor of the scores.
      width: sigma^2 of the kernels in WITH_WIDTH.

    Returns:
      Arrays with leading axis R.
    """
    if kernel == "inner":
        given = given / temperature
        # Subtracting a row's own score does not change its softmax, and avoids cancellation of large scores.
        return given, jax.lax.stop_gradient(jnp.sum(given * own, axis=1))
    if kernel == "pkt":
        return l2_normalize(given), _each_row(1 / temperature, given)
    scale = width * temperature if kernel == "sne" else width
    operands = given / scale, _half_squares(given) / scale, _each_row(1 / scale, given)
    return operands if kernel == "sne" else (*operands, _each_row(1 / temperature, given))


def column_operands(kernel: str, columns: Array) -> Operands:
    """Returns the operands, with leading axis C, of columns u [C, E]."""
    if kernel == "inner":
        return (columns,)
    if kernel == "pkt":
        return (l2_normalize(columns),)
    return columns, _half_squares(columns)


def scores(kernel: str, rows: Operands, columns: Operands) -> Array:
    """Returns the scores [R, C], divided by the temperature, for the operands of rows and of columns."""
    products = jnp.matmul(rows[0], columns[0].T, precision=jax.lax.Precision.HIGHEST)
    if kernel == "inner":
        return products - rows[1][:, None]
    if kernel == "pkt":
        return jnp.log(jnp.maximum((products + 1) / 2, PKT_FLOOR)) * rows[1][:, None]
    half_distances = rows[1][:, None] + rows[2][:, None] * columns[1][None, :] - products
    if kernel == "sne":
        return -half_distances
    return jnp.exp(-jnp.maximum(half_distances, 0)) * rows[3][:, None]


def _half_squares(x: Array) -> Array:
    return jnp.sum(jnp.square(x), axis=1) / 2


def _each_row(x: float | Array, rows: Array) -> Array:
    return jnp.broadcast_to(jnp.asarray(x, rows.dtype), rows.shape[:1])
