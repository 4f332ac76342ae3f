"""Streamed reductions of rows of scores, the primitive of the streamed losses.

A loss over all pairs of R rows and C columns needs a reduction of each row's scores: log sum_j exp(s_ij) for a softmax,
sum_j s_ij for a sum over pairs. The scores are computed tile by tile, once for the value and once more for the
gradient, and only arrays of length R or C are stored. The softmax uses running maxima and rescaled sums (Milakov and
Gimelshein 2018, arXiv 1805.02867).

A score of -inf is excluded from a softmax and from a sum, so that masks can depend on scores.
"""

import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from endx_jax.errors import EndxError
from endx_jax.losses.shard import Tiles, cut_rows, joined, length

Array = jax.Array
Tree = Any
Scores = Callable[[Tree, Tree], tuple[Array, ...]]
Keep = Callable[[Tree, Tree], Tree]


class RowStatistics(NamedTuple):
    """Statistics of each row's scores s (student) and t (teacher) over the kept columns.

    KL(softmax(t) || softmax(s)) is `difference - teacher_log_sum_exp + log_sum_exp`.

    Attributes:
      log_sum_exp: [R], log-sum-exp of s; -inf for rows without kept columns.
      teacher_log_sum_exp: [R], log-sum-exp of t; None without a teacher.
      difference: [R], sum_j softmax(t)_j (t_j - s_j); 0 for rows without kept columns, None without a teacher.
      highest: [R], maximum of s, without a gradient; -inf for rows without kept columns.
      kept: int32 [R], number of kept columns.
    """

    log_sum_exp: Array
    teacher_log_sum_exp: Any
    difference: Any
    highest: Array
    kept: Array


def row_statistics(
    scores: Scores, keep: Keep, rows: Tree, columns: Tree, row_marks: Tree, column_marks: Tree, *, tile: int
) -> RowStatistics:
    """Computes statistics of R x C scores without an array of R x C in the value or the gradient.

    Differentiable with respect to `rows` and `columns`. Operands without a gradient, such as those under
    `jax.lax.stop_gradient`, cost no backward pass.

    Args:
      scores: function (row operands, column operands) -> a tuple of the student's scores [rows, columns] and, with a
        teacher, the teacher's. It must be a module-level function, or a `functools.partial` of one. It is
        differentiated tile by tile, so all arrays with a gradient must be operands.
      keep: function (row marks, column marks) -> bool [rows, columns], true for the scores to include, or None to
        include all. It must be a module-level function too.
      rows: pytree of float arrays with leading axis R. Operands must be finite, even in excluded rows.
      columns: pytree of float arrays with leading axis C, likewise finite.
      row_marks: pytree of integer or bool arrays with leading axis R.
      column_marks: pytree of integer or bool arrays with leading axis C.
      tile: maximum number of rows and of columns in a tile.

    Returns:
      The statistics, in the dtype of the scores.

    Raises:
      EndxError: `tile` is not positive.
    """
    return reduce_scores(SOFTMAX, scores, keep, rows, columns, row_marks, column_marks, tile=tile)


class RowSums(NamedTuple):
    """Sum of each row's scores over the kept columns.

    Attributes:
      total: [R].
      highest: [R], maximum, without a gradient; -inf for rows without kept columns.
      kept: int32 [R], number of kept columns.
    """

    total: Array
    highest: Array
    kept: Array


class Reduction(NamedTuple):
    """A reduction of each row's scores that is computed tile by tile.

    Attributes:
      of_tile: function (tiles of scores, kept) -> sums of each row, a named tuple with the number of kept columns as
        `kept`, int32 [R], if there is a gradient.
      merge: function (sums, sums) of two sets of columns -> sums of their union.
      finish: function sums -> result.
      pull_back: function (tiles of scores, kept, sums, cotangents of the result) -> cotangents of the tiles. Cotangents
        are None for results without a gradient. None: the result has no gradient.
      whole: function (whole arrays of scores, kept) -> result, differentiated by JAX; None if only tiles are supported.
    """

    of_tile: Callable[[Any, Any], Any]
    merge: Callable[[Any, Any], Any]
    finish: Callable[[Any], Any]
    pull_back: Callable[[tuple[Array, ...], Any, Any, Any], tuple[Array, ...]] | None = None
    whole: Callable[[tuple[Array, ...], Any], Any] | None = None


def each(reduction: Reduction) -> Reduction:
    """Returns a reduction of several arrays of scores, each by itself; its result is a tuple of results."""
    of_tile, merge, finish, pull_back, whole = reduction
    assert pull_back is not None  # for losses
    assert whole is not None

    def pull_back_each(tiles, kept, sums, cotangents):
        given = zip(tiles, sums.each, cotangents, strict=True)
        return tuple(pull_back((tile,), kept, tile_sums, cotangent)[0] for tile, tile_sums, cotangent in given)

    return Reduction(
        of_tile=lambda tiles, kept: _Each(tuple(of_tile((tile,), kept) for tile in tiles)),
        merge=lambda a, b: _Each(tuple(map(merge, a.each, b.each))),
        finish=lambda sums: tuple(map(finish, sums.each)),
        pull_back=pull_back_each,
        whole=lambda tiles, kept: tuple(whole((tile,), kept) for tile in tiles),
    )


class _Each(NamedTuple):
    """Sums of several arrays of scores."""

    each: tuple[Any, ...]

    @property
    def kept(self) -> Array:
        return self.each[0].kept


def reduce_scores(
    reduction: Reduction,
    scores: Scores,
    keep: Keep,
    rows: Tree,
    columns: Tree,
    row_marks: Tree,
    column_marks: Tree,
    *,
    tile: int | None,
) -> Any:
    """Reduces each row's scores; arguments and errors are those of `row_statistics`.

    Where the reduction has no gradient, operands may be of any dtype, and `keep` may return several arrays. `tile=None`
    computes whole arrays of scores, if the reduction has that form, and stores them for the gradient.
    """
    if tile is None:
        assert reduction.whole is not None
        tiles, kept = scores(rows, columns), keep(row_marks, column_marks)
        return reduction.whole(tiles, jnp.ones(tiles[0].shape, bool) if kept is None else kept)
    if tile < 1:
        raise EndxError(f"tile is {tile}; it must be at least 1")
    operands, marks = _varying_alike(((rows, columns), (row_marks, column_marks)))
    if reduction.pull_back is None:
        return reduction.finish(_sums(reduction, scores, keep, tile, jax.lax.stop_gradient(operands), marks))
    return _reduced(reduction, scores, keep, tile, operands, marks)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2, 3))
def _reduced(reduction: Reduction, scores: Scores, keep: Keep, tile: int, operands: Tree, marks: Tree) -> Any:
    return reduction.finish(_sums(reduction, scores, keep, tile, operands, marks))


def _forward(
    reduction: Reduction, scores: Scores, keep: Keep, tile: int, operands: Tree, marks: Tree
) -> tuple[Any, Tree]:
    """Saves the operands with a gradient and those without as two trees, with None for the leaves of the other."""
    moving = jax.tree.map(lambda x: x.value if x.perturbed else None, operands)
    constant = jax.tree.map(lambda x: None if x.perturbed else x.value, operands)
    operands, marks = jax.tree.map(lambda x: x.value, (operands, marks))
    sums = _sums(reduction, scores, keep, tile, operands, marks)
    return reduction.finish(sums), (moving, constant, marks, sums)


def _backward(reduction: Reduction, scores: Scores, keep: Keep, tile: int, remembered: Tree, cotangents: Tree) -> Tree:
    moving, constant, marks, sums = remembered
    given = (sums, jax.tree.map(_materialized, cotangents))
    assert reduction.pull_back is not None  # reductions without one are not differentiated
    of_scores = reduction.pull_back
    rows = cut_rows((moving[0], constant[0], given), marks[0], tile)
    columns = cut_rows((moving[1], constant[1]), marks[1], tile)

    def of_rows(to_columns, row):
        moving_row, constant_row, given = row.operands

        def of_tile(carry, numbered_column):
            to_row, to_columns = carry
            number, column = numbered_column
            moving_column, constant_column = column.operands

            def of_moving(row, column):
                return scores(_filled(row, constant_row), _filled(column, constant_column))

            def add(to_all, to_this):
                # Update in place, so that there is only one array of gradients of all columns.
                return jax.lax.dynamic_update_index_in_dim(to_all, to_all[number] + to_this, number, axis=0)

            tiles, pull_back = jax.vjp(of_moving, moving_row, moving_column)
            more_to_row, to_column = pull_back(of_scores(tiles, _kept(keep, row, column), *given))
            return (jax.tree.map(jnp.add, to_row, more_to_row), jax.tree.map(add, to_columns, to_column)), None

        numbered_columns = (jnp.arange(len(columns.real)), columns)
        initial = (jax.tree.map(jnp.zeros_like, moving_row), to_columns)
        (to_row, to_columns), _ = jax.lax.scan(of_tile, initial, numbered_columns)
        return to_columns, to_row

    # A zero that XLA cannot see as a constant: it would keep an array of constant zeros in memory and copy it.
    zero = jnp.min(sums.kept, initial=0)
    none = jax.tree.map(lambda x: jnp.broadcast_to(zero.astype(x.dtype), x.shape), columns.operands[0])
    to_columns, to_rows = jax.lax.scan(of_rows, none, rows)
    lengths = (length(side) for side in zip(moving, constant, strict=True))
    return tuple(map(joined, (to_rows, to_columns), lengths)), None


_reduced.defvjp(_forward, _backward, symbolic_zeros=True)


def _sums(reduction: Reduction, scores: Scores, keep: Keep, tile: int, operands: Tree, marks: Tree) -> Any:
    rows, columns = (cut_rows(*side, tile) for side in zip(operands, marks, strict=True))

    def of_tile(row, column):
        return reduction.of_tile(scores(row.operands, column.operands), _kept(keep, row, column))

    def of_rows(row):
        def add(sums, column):
            return reduction.merge(sums, of_tile(row, column)), None

        no_column = jax.tree.map(lambda x: x[0, :0], columns)
        sums, _ = jax.lax.scan(add, of_tile(row, no_column), columns)
        return sums

    return joined(jax.lax.map(of_rows, rows), length(operands[0]))


def _kept(keep: Keep, row: Tiles, column: Tiles) -> Any:
    real = row.real[:, None] & column.real[None, :]
    kept = keep(row.marks, column.marks)
    return real if kept is None else jax.tree.map(lambda marked: real & marked, kept)


def _finite(highest: Array) -> Array:
    """Returns the maximum to subtract before exponentials: 0 for -inf, the maximum of no columns."""
    return jnp.where(highest == -jnp.inf, 0, highest)


def _filled(moving: Tree, constant: Tree) -> Tree:
    return jax.tree.map(lambda x, y: y if x is None else x, moving, constant, is_leaf=lambda x: x is None)


def _materialized(x: Array | SymbolicZero) -> Array | None:
    if x.dtype == jax.dtypes.float0:
        return None
    return jnp.zeros(x.shape, x.dtype) if isinstance(x, SymbolicZero) else x


def _varying_alike(tree: Tree) -> Tree:
    """Inside `jax.shard_map`, makes all arrays vary over the same mesh axes, which loops require."""
    true = functools.reduce(operator.and_, [jnp.all(x[:0] == 0) for x in jax.tree.leaves(tree)])
    return jax.tree.map(lambda x: jnp.where(true, x, x), tree)


class _Sums(NamedTuple):
    """Sums of each row for the softmax; the tuples hold the student's and, with a teacher, the teacher's."""

    highest: tuple[Array, ...]
    total: tuple[Array, ...]  # sum exp(score - highest)
    difference: Tree  # sum exp(t - highest t) (t - s); None without a teacher
    kept: Array


def _tile_sums(tiles: tuple[Array, ...], kept: Array) -> _Sums:
    kept = _included(tiles, kept)
    masked = tuple(jnp.where(kept, scores, -jnp.inf) for scores in tiles)
    highest = tuple(jnp.max(scores, axis=1, initial=-jnp.inf) for scores in masked)
    weights = tuple(jnp.exp(scores - _finite(high)[:, None]) for scores, high in zip(masked, highest, strict=True))
    total = tuple(jnp.sum(x, axis=1) for x in weights)
    difference = jnp.sum(weights[1] * (tiles[1] - tiles[0]), axis=1) if len(tiles) == 2 else None
    return _Sums(highest, total, difference, jnp.sum(kept, axis=1, dtype=jnp.int32))


def _merged(a: _Sums, b: _Sums) -> _Sums:
    """Merges two sums after rescaling both to the greater maximum."""
    highest = tuple(map(jnp.maximum, a.highest, b.highest))
    of_a, of_b = (tuple(jnp.exp(x - _finite(h)) for x, h in zip(sums.highest, highest, strict=True)) for sums in (a, b))
    total = tuple(x * p + y * q for x, p, y, q in zip(a.total, of_a, b.total, of_b, strict=True))
    difference = None if a.difference is None else a.difference * of_a[1] + b.difference * of_b[1]
    return _Sums(highest, total, difference, a.kept + b.kept)


def _finished(sums: _Sums) -> RowStatistics:
    log_sum_exp = [_finite(high) + jnp.log(total) for high, total in zip(sums.highest, sums.total, strict=True)]
    if sums.difference is None:
        return RowStatistics(log_sum_exp[0], None, None, sums.highest[0], sums.kept)
    return RowStatistics(log_sum_exp[0], log_sum_exp[1], _mean_difference(sums), sums.highest[0], sums.kept)


def _mean_difference(sums: _Sums) -> Array:
    return sums.difference / jnp.where(sums.kept > 0, sums.total[1], 1)


def _pull_back(tiles: tuple[Array, ...], kept: Array, sums: _Sums, cotangents: RowStatistics) -> tuple[Array, ...]:
    kept = _included(tiles, kept)
    to_sum, to_teacher_sum, to_difference = jax.tree.map(lambda x: x[:, None], tuple(cotangents[:3]))

    def softmax(scores, high, total):
        # Use the maximum and the sum: the rounding error of their log-sum-exp grows with the maximum.
        weights = jnp.exp(jnp.where(kept, scores - _finite(high)[:, None], -jnp.inf))
        return weights / jnp.where(sums.kept > 0, total, 1)[:, None]

    probabilities = tuple(map(softmax, tiles, sums.highest, sums.total))
    if len(tiles) == 1:
        return (to_sum * probabilities[0],)
    student, teacher = probabilities
    above_mean = tiles[1] - tiles[0] - _mean_difference(sums)[:, None]
    return (to_sum * student - to_difference * teacher, (to_teacher_sum + to_difference * (1 + above_mean)) * teacher)


def _whole(tiles: tuple[Array, ...], kept: Array) -> RowStatistics:
    (scores,), kept = tiles, _included(tiles, kept)
    some = jnp.any(kept, axis=1)
    # The logsumexp of an empty row has no finite gradient, so such rows sum zeros and are replaced below.
    filled = jnp.where(kept, scores, jnp.where(some[:, None], -jnp.inf, 0))
    return RowStatistics(
        log_sum_exp=jnp.where(some, jax.nn.logsumexp(filled, axis=1), -jnp.inf),
        teacher_log_sum_exp=None,
        difference=None,
        highest=jax.lax.stop_gradient(jnp.max(scores, axis=1, where=kept, initial=-jnp.inf)),
        kept=jnp.sum(kept, axis=1, dtype=jnp.int32),
    )


def _included(tiles: tuple[Array, ...], kept: Array) -> Array:
    return kept & (tiles[0] != -jnp.inf)


SOFTMAX = Reduction(_tile_sums, _merged, _finished, _pull_back, _whole)


def _tile_totals(tiles: tuple[Array, ...], kept: Array) -> RowSums:
    (scores,), kept = tiles, _included(tiles, kept)
    return RowSums(
        total=jnp.sum(jnp.where(kept, scores, 0), axis=1),
        highest=jax.lax.stop_gradient(jnp.max(scores, axis=1, where=kept, initial=-jnp.inf)),
        kept=jnp.sum(kept, axis=1, dtype=jnp.int32),
    )


SUM = Reduction(
    of_tile=_tile_totals,
    merge=lambda a, b: RowSums(a.total + b.total, jnp.maximum(a.highest, b.highest), a.kept + b.kept),
    finish=lambda sums: sums,
    pull_back=lambda tiles, kept, sums, cotangents: (jnp.where(_included(tiles, kept), cotangents.total[:, None], 0),),
    whole=_tile_totals,
)

SOFTMAXES, SUMS = each(SOFTMAX), each(SUM)
