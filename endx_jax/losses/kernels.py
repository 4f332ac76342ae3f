r"""Kernels of the geometry alignment (ENDX, section 3.4): what makes a score s(u, v) of two embeddings.

The probability of u_j given v_i is softmax over j of s(u_j, v_i) / temperature, with s:

| kernel | s(u, v) | source |
|---|---|---|
| `inner` | u . v | ENDX Eq. 10 |
| `gaussian` | exp(-\|u - v\|^2 / (2 width)) | ENDX Eq. 9 inside Eqs. 7-8, to the letter: s lies in (0, 1] |
| `sne` | -\|u - v\|^2 / (2 width) | ENDX Eq. 6 (Hinton and Roweis 2002) |
| `pkt` | log((cos(u, v) + 1) / 2) | Passalis and Tefas 2018: the softmax of a logarithm divides K by its sum |

`width` is the sigma^2 of ENDX Eqs. 7-8, which pass 2 sigma^2 on to Eq. 9.

A kernel comes in two parts, so that the same arithmetic serves a whole matrix and its tiles: operands of rows and of
columns, made once from the embeddings, with width and temperature multiplied into those of the rows; and the scores of
any rows' operands with any columns'.
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

# The least (cos + 1) / 2 of `pkt`: opposite embeddings keep a finite logarithm, as with the epsilon of PKT's code.
PKT_FLOOR = 1e-7


class Moments(NamedTuple):
    """Mean and variance of one side's embeddings in one space."""

    mean: Array  # [1, E]
    variance: Array  # [], mean squared distance from the mean


def moments(x: Array, where: Array, total: Callable[[Array], Array]) -> Moments:
    """Mean and variance of embeddings [B, E], zero where `where` [B] is false; `total` adds up over devices."""
    x = jax.lax.stop_gradient(x)
    count = jnp.maximum(total(jnp.sum(where, dtype=x.dtype)), 1)
    mean = total(jnp.sum(x, axis=0, keepdims=True)) / count
    squares = jnp.where(where[:, None], jnp.square(x - mean), 0)
    return Moments(mean, total(jnp.sum(squares)) / count)


def mean_squared_distance(given: Moments, columns: Moments) -> Array:
    """Mean of |u - v|^2 over all pairs: both variances and the squared distance of the means; 1 if points coincide."""
    distance = given.variance + columns.variance + jnp.sum(jnp.square(given.mean - columns.mean))
    # Points that coincide but for rounding have no width of their own, and any gives them equal scores.
    rounding = (8 * jnp.finfo(distance.dtype).eps) ** 2 * jnp.sum(jnp.square(given.mean))
    return jnp.where(distance > rounding, distance, 1)


def row_operands(kernel: str, given: Array, own: Array, temperature: float | Array, width: float | Array) -> Operands:
    """Operands of rows.

    Args:
      kernel: one of KERNELS.
      given: [R, E], the v of each row.
      own: [R, E], the u matched with each v: v itself where both are of one side.
      temperature: divides the scores.
      width: for the kernels WITH_WIDTH.

    Returns:
      Arrays with leading axis R.
    """
    if kernel == "inner":
        given = given / temperature
        # No softmax knows of a constant added to a row. With its own score taken off, large scores do not cancel.
        return given, jax.lax.stop_gradient(jnp.sum(given * own, axis=1))
    if kernel == "pkt":
        return l2_normalize(given), _each_row(1 / temperature, given)
    scale = width * temperature if kernel == "sne" else width
    operands = given / scale, _half_squares(given) / scale, _each_row(1 / scale, given)
    return operands if kernel == "sne" else (*operands, _each_row(1 / temperature, given))


def column_operands(kernel: str, columns: Array) -> Operands:
    """Operands of columns, with leading axis C, from their u [C, E]."""
    if kernel == "inner":
        return (columns,)
    if kernel == "pkt":
        return (l2_normalize(columns),)
    return columns, _half_squares(columns)


def scores(kernel: str, rows: Operands, columns: Operands) -> Array:
    """Scores [R, C], divided by the temperature, from the operands of rows and of columns."""
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
