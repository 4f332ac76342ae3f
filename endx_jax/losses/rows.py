"""Losses of one row at a time: a function of one row and of all columns, averaged over the rows of a batch.

A loss over all pairs of R rows and C columns has R x C scores. It is written for one row, with C scores.
`mean_over_rows` computes the losses of a tile of rows and, from the same scores, their gradients: they are needed only
up to one factor, the gradient of the mean. So no array of R x C numbers is stored, and no score is computed twice.
"""

import functools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import CustomVJPPrimal

from endx_jax.checks import check_positive
from endx_jax.losses.shard import AxisName, psum
from endx_jax.numerics import at_least_float32, leading_size

Array = jax.Array
Tree = Any


def mean_over_rows(
    function: Callable[[Tree, Tree], tuple[Array, Tree]],
    rows: Tree,
    shared: Tree,
    where: Array,
    tile: int | None = None,
    axis_name: AxisName = None,
) -> tuple[Array, Tree]:
    """Computes the means of a loss and of metrics over the included rows of all devices.

    Args:
      function: function (row, shared) -> (loss, tree of metrics, without a gradient). All arrays with a gradient must
        be among its arguments: inside `jax.shard_map`, their gradients are then summed over devices once, and not for
        each tile.
      rows: tree of arrays [R, ...], this device's rows.
      shared: tree of arrays of any shape, such as the candidates of all devices and a temperature.
      where: bool [R], rows to include. The loss of other rows is ignored, but its gradient must be finite.
      tile: number of rows, above 0, whose intermediate arrays are in memory at a time, in value and gradient. None
        stores the intermediate arrays of all rows for the gradient. Both give the same values.
      axis_name: inside `jax.shard_map`, the mesh axis or axes over which the rows are split.

    Returns:
      A tuple (mean loss, mean metrics), zeros if no row is included.

    Examples:
      >>> def highest(question, answers):
      ...     scores = losses.dot(question, answers)
      ...     return jnp.max(scores), {"last": jnp.argmax(scores) == 1}
      >>> question = answer = jnp.array([[1.0, 0.0], [0.0, 3.0]])
      >>> loss, metrics = losses.mean_over_rows(highest, question, answer, jnp.ones(2, bool), tile=1)
      >>> print(loss, metrics["last"])  # 1 and 9, of which the second is in the last column
      5.0 0.5
    """
    check_positive("tile", tile)
    rows, shared = _varying_alike(jax.tree.map(jnp.asarray, ((rows, where), shared)))
    whole = len(where) // tile * tile if tile else 0
    found = []
    if tile and whole:
        tiles = jax.tree.map(lambda x: x[:whole].reshape(-1, tile, *x.shape[1:]), rows)
        found.append(_sum_tiles(function, tiles, shared))
    if whole < len(where) or not whole:
        found.append(_sum(function, jax.tree.map(lambda x: x[whole:], rows), shared))
    count = jnp.maximum(psum(jnp.sum(where), axis_name), 1)
    return jax.tree.map(lambda *x: psum(sum(x), axis_name) / count, *found)


def map_rows(function: Callable[[Tree], Tree], rows: Tree, tile: int | None) -> Tree:
    """Applies a function to each row and stacks the results, `tile` rows at a time, and again for the gradient."""
    check_positive("tile", tile)
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


def softmax_divergence(student: Array, teacher: Array, where: Array) -> Array:
    """Returns KL(softmax(teacher) || softmax(student)) over the columns [C] for which `where` is true; 0 without any.

    Scores of the other columns must be finite.
    """
    # The softmax of no columns is undefined: all columns take its place.
    kept = where | ~jnp.any(where)
    log_student, log_teacher = (jax.nn.log_softmax(jnp.where(kept, x, -jnp.inf)) for x in (student, teacher))
    return jnp.sum(jnp.exp(log_teacher) * jnp.where(where, log_teacher - log_student, 0))


def _sum(function: Callable, rows: tuple[Tree, Array], shared: Tree) -> tuple[Array, Tree]:
    """Returns the sums of the loss and of the metrics over the included rows."""
    losses, metrics = jax.vmap(function, (0, None))(rows[0], shared)
    metrics = jax.tree.map(lambda x: jax.lax.stop_gradient(x).astype(losses.dtype), metrics)
    return jax.tree.map(lambda x: jnp.sum(jnp.where(rows[1], x, 0)), (losses, metrics))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _sum_tiles(function: Callable, tiles: tuple[Tree, Array], shared: Tree) -> tuple[Array, Tree]:
    """Returns `_sum` over the rows of tiles, [N, T, ...]."""
    sums = jax.lax.map(lambda rows: _sum(function, rows, shared), tiles)
    return jax.tree.map(functools.partial(jnp.sum, axis=0), sums)


def _forward(function: Callable, tiles: Tree, shared: Tree):
    """Returns the results of `_sum_tiles`, and the gradients of the sum by those arrays that have one."""

    def arrays(perturbed: bool) -> tuple[Tree, Tree]:
        # None takes the place of the other arrays.
        choose = lambda x: x.value if x.perturbed == perturbed else None  # noqa: E731
        return jax.tree.map(choose, (tiles, shared), is_leaf=lambda x: isinstance(x, CustomVJPPrimal))

    (varied_tiles, varied), (fixed_tiles, fixed) = arrays(True), arrays(False)

    def add(to_shared, tile):
        def total(arguments):
            merge = lambda x, y: y if x is None else x  # noqa: E731
            return _sum(function, *jax.tree.map(merge, arguments, (tile[1], fixed), is_leaf=lambda x: x is None))

        found, (to_rows, more) = jax.value_and_grad(total, has_aux=True)((tile[0], varied))
        return jax.tree.map(jnp.add, to_shared, more), (found, to_rows)

    zeros = jax.tree.map(lambda x: at_least_float32(jnp.zeros_like(x)), varied)
    to_shared, (sums, to_tiles) = jax.lax.scan(add, zeros, (varied_tiles, fixed_tiles))
    to_shared = jax.tree.map(lambda x, y: x.astype(y.dtype), to_shared, varied)
    return jax.tree.map(functools.partial(jnp.sum, axis=0), sums), (to_tiles, to_shared)


def _backward(function: Callable, gradients: tuple[Tree, Tree], cotangents: tuple[Array, Tree]) -> tuple[Tree, Tree]:
    del function
    return jax.tree.map(lambda x: (cotangents[0] * x).astype(x.dtype), gradients)


_sum_tiles.defvjp(_forward, _backward, symbolic_zeros=True)


def _varying_alike(tree: Tree) -> Tree:
    """Inside `jax.shard_map`, makes all arrays vary over the same mesh axes, so that loops contain no collective."""
    true = functools.reduce(operator.and_, [jnp.all(x.reshape(-1)[:0] == 0) for x in jax.tree.leaves(tree)])
    return jax.tree.map(lambda x: jnp.where(true, x, x), tree)
