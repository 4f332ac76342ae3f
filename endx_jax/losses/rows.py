"""Losses of one row at a time: a function of one row and of all columns, mapped over the rows of a batch.

A loss over all pairs of R rows and C columns has R x C scores. It is written for one row, with C scores. `map_rows`
computes the scores of some rows at a time, once for the value and once more for the gradient, so that no array of R x C
numbers is stored.
"""

import functools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from endx_jax.errors import EndxError
from endx_jax.numerics import leading_size

Array = jax.Array
Tree = Any


def map_rows(function: Callable[[Tree, Tree], Tree], rows: Tree, shared: Tree, tile: int | None) -> Tree:
    """Applies `function(row, shared)` to each row, and stacks the results.

    Args:
      function: function of one row and of what all rows share. All arrays with a gradient must be among its arguments:
        inside `jax.shard_map`, their gradients are then summed over devices once, and not for each tile.
      rows: tree of arrays [R, ...].
      shared: tree of arrays of any shape, such as the candidates of all devices and a temperature.
      tile: number of rows whose intermediate arrays are in memory at a time; they are recomputed for the gradient. None
        computes all rows at once and stores their intermediate arrays. Both give the same values.

    Returns:
      Tree of arrays [R, ...].

    Raises:
      EndxError: `tile` is not positive.

    Examples:
      >>> question = answer = jnp.array([[1.0, 0.0], [0.0, 1.0]])
      >>> print(losses.map_rows(lambda row, answers: jnp.max(losses.dot(row, answers)), question, answer, tile=1))
      [1. 1.]
    """
    if tile is not None and tile < 1:
        raise EndxError(f"tile is {tile}; it must be at least 1, or None")
    rows, shared = _varying_alike(jax.tree.map(jnp.asarray, (rows, shared)))
    return in_tiles(lambda row: function(row, shared), rows, tile)


def in_tiles(function: Callable[[Tree], Tree], rows: Tree, tile: int | None) -> Tree:
    """Applies a function to each row, `tile` rows at a time, inside a function that `map_rows` maps."""
    if tile is None or not leading_size(rows):
        return jax.vmap(function)(rows)
    return jax.lax.map(jax.checkpoint(function), rows, batch_size=tile)


def dot(row: Array, columns: Array) -> Array:
    """Returns the inner products [C] of a row [E] and columns [C, E], or the inner product of two vectors [E].

    Matrix products have the highest precision, as those of accelerators are otherwise rounded to fewer bits.

    Examples:
      >>> print(losses.dot(jnp.array([1.0, 2.0]), jnp.array([[3.0, 0.0], [0.0, 4.0]])))
      [3. 8.]
    """
    # Not `row @ columns.T`: a transpose inside a loop would be copied out of it.
    contracted = (((0,), (columns.ndim - 1,)), ((), ()))
    return jax.lax.dot_general(row, columns, contracted, precision=jax.lax.Precision.HIGHEST)


def log_sum_exp(scores: Array, where: Array) -> Array:
    """Returns log sum_j exp(scores_j) over the columns [C] for which `where` is true; -inf if there are none.

    Examples:
      >>> print(losses.log_sum_exp(jnp.array([1.0, 5.0]), where=jnp.array([True, False])))
      1.0
    """
    some = jnp.any(where)
    # The log-sum-exp of no columns has no finite gradient, so zeros take their place.
    filled = jnp.where(where, scores, jnp.where(some, -jnp.inf, 0))
    return jnp.where(some, jax.nn.logsumexp(filled), -jnp.inf)


def _varying_alike(tree: Tree) -> Tree:
    """Inside `jax.shard_map`, makes all arrays vary over the same mesh axes, so that loops contain no collective."""
    true = functools.reduce(operator.and_, [jnp.all(x.reshape(-1)[:0] == 0) for x in jax.tree.leaves(tree)])
    return jax.tree.map(lambda x: jnp.where(true, x, x), tree)
