r"""Geometry alignment of ENDX (Wang et al. 2021, section 3.4), and its baseline, element-wise regression.

Each of four terms u|v compares the distributions over the batch's embeddings u_j given an embedding v_i, in the space
of the cross encoder (teacher) and of the dual encoder (student), by the Kullback-Leibler divergence (Eq. 11):

$$ L_{u|v} = \frac{1}{B} \sum_i \sum_j p_{cross}(u_j|v_i) \log \frac{p_{cross}(u_j|v_i)}{p_{dual}(u_j|v_i)} $$

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

import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from endx_jax.checks import check_arrays, check_positive
from endx_jax.errors import EndxError
from endx_jax.losses.shard import AxisName, Shard
from endx_jax.losses.streaming import row_statistics
from endx_jax.numerics import l2_normalize
from endx_jax.settings import check_choice

Array = jax.Array
Pair = tuple[Array, Array]
Scalar = float | Array
Operands = tuple[Array, ...]
Width = Scalar | None | tuple[Scalar | None, Scalar | None]

TERMS = ("a|q", "q|q", "q|a", "a|a")
REDUCTIONS = ("batchmean", "mean")
SPACES = ("dual", "cross")
KERNELS = ("inner", "gaussian", "sne", "pkt")
WITH_WIDTH = ("gaussian", "sne")

# Minimum of (cos + 1) / 2 in `pkt`, for a finite logarithm of opposite embeddings, like the epsilon in PKT's code.
PKT_FLOOR = 1e-7


def geometry_alignment(
    dual: Pair,
    cross: Pair,
    *,
    weights: Mapping[str, Scalar],
    kernel: str = "inner",
    temperature: tuple[Scalar, Scalar] = (1.0, 1.0),
    width: Width | Mapping[str, Width] = None,
    diagonal: bool = True,
    reduction: str = "batchmean",
    stop_gradient: bool = True,
    where: Array | None = None,
    tile: int | None = None,
    axis_name: AxisName = None,
) -> tuple[Array, dict[str, Array]]:
    r"""Computes the weighted sum of Kullback-Leibler terms between two spaces (Wang et al. 2021, Eqs. 6 to 12).

    Args:
      dual: question and answer embeddings [B, E] of the student. Products are at least float32, with the highest matmul
        precision.
      cross: question and answer embeddings [B, F] of the teacher.
      weights: weights by term, `a|q`, `q|q`, `q|a` or `a|a`; omitted terms are not computed.
      kernel: `inner`, `gaussian`, `sne` or `pkt`; see the table above.
      temperature: (dual, cross) divisors of the scores in the softmax. They scale the width of `sne` and raise K of
        `pkt` to the power 1 / temperature.
      width: sigma^2 of `gaussian` and `sne`, in squared distance: a number, a (dual, cross) pair, or a mapping from
        terms to either. None, or a term that is not in the mapping, means an estimate for each space and term: the mean
        squared distance of the compared pairs, without a gradient.
      diagonal: includes j = i in `q|q` and `a|a`. SNE sets p(i|i) = 0; ENDX's Eqs. 7-8 and PKT's code include it. The
        matched pair is always included in `a|q` and `q|a`.
      reduction: `batchmean`, the mean over i of the sum over j (Eq. 11), or `mean`, the mean over all compared (i, j),
        as in PKT's code.
      stop_gradient: treats p_cross as constant: no gradient flows to `cross`, its temperature or its width.
      where: bool [B], pairs to include; other pairs are neither rows nor columns, even if NaN.
      tile: maximum rows and columns of a tile of scores, for memory O(B E + tile^2). Tiles are recomputed for the
        gradient. None computes whole arrays of scores [B, B]. Both give the same values and gradients.
      axis_name: inside `jax.shard_map`, the mesh axis or axes over which the batch is split. Arrays are then this
        device's rows, and all devices return the results of the whole batch. Requires `tile`.

    Returns:
      A tuple (loss, terms): the weighted sum of the terms, and the unweighted terms by name. Terms without any compared
      pairs are zero.

    Examples:
      >>> dual = jnp.array([[1.0, 0.0], [0.0, 1.0]]), jnp.array([[1.0, 0.0], [0.0, 1.0]])
      >>> cross = dual[0], jnp.array([[1.0, 1.0], [1.0, 1.0]])
      >>> loss, terms = losses.geometry_alignment(dual, cross, weights={"a|q": 2.0})
      >>> print(f"{loss:.4f}", f"{terms['a|q']:.4f}")  # KL of (0.731, 0.269) from (0.5, 0.5), twice and once
      0.2402 0.1201
    """
    _check(dual, cross, weights, kernel, temperature, width, reduction, where, tile, axis_name)
    shard = Shard.of(dual[0].shape[0], where, axis_name)
    student, teacher = (
        _space(pair, shard, weights, kernel, diagonal, temperature=warmth, widths=widths)
        for pair, warmth, widths in zip((dual, cross), temperature, _widths(width), strict=True)
    )
    teacher = jax.lax.stop_gradient(teacher) if stop_gradient else teacher
    if tile is None:
        divergences = _divergences(kernel, student, teacher, shard.where, diagonal)
    else:
        divergences = _streamed_divergences(kernel, student, teacher, shard, diagonal, tile)
    terms = {}
    for term in sorted(divergences, key=TERMS.index):
        divisor = _count(shard) * (_columns(term, shard, diagonal) if reduction == "mean" else 1)
        terms[term] = shard.psum(jnp.sum(divergences[term])) / jnp.maximum(divisor, 1)
    weighted = [weights[term] * value for term, value in terms.items()]
    return functools.reduce(operator.add, weighted), terms


def embedding_regression(
    dual: Pair, cross: Pair, *, stop_gradient: bool = True, where: Array | None = None, axis_name: AxisName = None
) -> tuple[Array, dict[str, Array]]:
    """Computes the mean squared difference between dual and cross embeddings.

    A baseline of `geometry_alignment`, which Wang et al. 2021 (section 3.4) consider too rigid.

    Args:
      dual: question and answer embeddings [B, E] of the student.
      cross: question and answer embeddings [B, E] of the teacher.
      stop_gradient: treats `cross` as constant.
      where: bool [B], pairs to include.
      axis_name: as in `geometry_alignment`.

    Returns:
      A tuple (loss, {}). The loss is the mean over included pairs, both embeddings and all coordinates, zero if there
      are no pairs.

    Examples:
      >>> dual = jnp.array([[1.0, 0.0], [0.0, 1.0]]), jnp.array([[1.0, 0.0], [0.0, 1.0]])
      >>> cross = dual[0], jnp.array([[1.0, 0.0], [0.0, 3.0]])
      >>> print(losses.embedding_regression(dual, cross)[0])  # one of eight numbers differs, by 2
      0.5
    """
    # Embeddings of another width can be aligned by `geometry_alignment`, or projected.
    _check_pairs(dual, cross, where, "E")
    shard = Shard.of(dual[0].shape[0], where, axis_name)
    dual, cross = jax.tree.map(shard.masked_rows, (dual, cross))
    cross = jax.lax.stop_gradient(cross) if stop_gradient else cross
    squares = [jnp.sum(jnp.square(d - c)) for d, c in zip(dual, cross, strict=True)]
    return shard.psum(squares[0] + squares[1]) / (2 * dual[0].shape[1] * jnp.maximum(_count(shard), 1)), {}


def _check(dual, cross, weights, kernel, temperature, width, reduction, where, tile, axis_name) -> None:
    _check_pairs(dual, cross, where, "F")
    if not isinstance(temperature, Sequence) or len(temperature) != len(SPACES):
        raise EndxError(f"temperature is {temperature!r}; it must be a pair, of the dual and of the cross space")
    for space, own_temperature, widths in zip(SPACES, temperature, _widths(width), strict=True):
        check_positive(f"temperature of the {space} space", own_temperature)
        for term, own_width in widths.items():
            check_positive(f"width of {term} in the {space} space", own_width)
    if axis_name is not None and tile is None:
        raise EndxError("axis_name is given without tile: a loss over several devices is streamed, so set tile too")
    if tile is not None and tile < 1:
        raise EndxError(f"tile is {tile}; it must be at least 1, or None for the dense form")
    check_choice("kernel", kernel, KERNELS)
    check_choice("reduction", reduction, REDUCTIONS)
    if not weights:
        raise EndxError(f"weights is empty; give one or more of the terms {', '.join(TERMS)}")
    if width is not None and kernel not in WITH_WIDTH:
        raise EndxError(f"width is given, but the kernel {kernel!r} has no width; only {' and '.join(WITH_WIDTH)} do")
    for name, mapping in (("weights", weights), ("width", width if isinstance(width, Mapping) else {})):
        for term in mapping:
            if term not in TERMS:
                raise EndxError(f"{name} names the term {term!r}, which is none of {', '.join(TERMS)}")


def _check_pairs(dual: Pair, cross: Pair, where: Array | None, cross_width: str) -> None:
    """Checks the embeddings of both spaces; `cross_width` is the letter of the cross embeddings' width."""
    for space, pair in zip(SPACES, (dual, cross), strict=True):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise EndxError(
                f"{space} is of type {type(pair).__name__}; it must be a pair of question and answer embeddings"
            )
    check_arrays(
        {
            "dual question": (dual[0], "[B, E]"),
            "dual answer": (dual[1], "[B, E]"),
            "cross question": (cross[0], f"[B, {cross_width}]"),
            "cross answer": (cross[1], f"[B, {cross_width}]"),
            "where": (where, "bool [B]"),
        }
    )


class _Space(NamedTuple):
    """Operands of one space's scores: of this device's rows by term, and of all devices' columns by side."""

    rows: dict[str, Operands]
    columns: dict[str, Operands]


def _widths(width: Width | Mapping[str, Width]) -> tuple[dict, dict]:
    """Returns the widths of the dual and of the cross space by term; None for widths to estimate."""
    by_term = {term: width.get(term) if isinstance(width, Mapping) else width for term in TERMS}
    pairs = {term: x if isinstance(x, tuple | list) else (x, x) for term, x in by_term.items()}
    return {term: dual for term, (dual, _) in pairs.items()}, {term: cross for term, (_, cross) in pairs.items()}


def _space(
    pair: Pair, shard: Shard, terms: Iterable[str], kernel: str, diagonal: bool, *, temperature: Scalar, widths: dict
) -> _Space:
    sides = dict(zip("qa", map(shard.masked_rows, pair), strict=True))
    moments = {}
    if kernel in WITH_WIDTH:
        moments = {side: _moments(x, shard.where, shard.psum) for side, x in sides.items()}
        # Distances do not depend on the origin. A central one keeps squared norms small, which reduces cancellation.
        centre = (moments["q"].mean + moments["a"].mean) / 2
        sides = {side: x - centre for side, x in sides.items()}
    rows = {}
    for term in terms:
        facing, given = term.split("|")
        width = widths[term]
        if width is None and moments:
            # The mean is over all pairs; without the diagonal, whose distances are 0, the sum is over fewer pairs.
            fewer = jnp.maximum(_count(shard), 1) / _columns(term, shard, diagonal)
            width = _mean_squared_distance(moments[given], moments[facing]) * fewer
        rows[term] = _row_operands(kernel, sides[given], sides[facing], temperature, width)
    columns = {side: _column_operands(kernel, x) for side, x in sides.items()}
    return _Space(rows, shard.all_gather(columns))


def _count(shard: Shard) -> Array:
    """Returns the number of pairs of the whole batch that count."""
    return shard.psum(jnp.sum(shard.where, dtype=jax.dtypes.canonicalize_dtype(float)))


def _columns(term: str, shard: Shard, diagonal: bool) -> Array:
    """Returns the number of columns that each counted row is compared with, at least 1."""
    return jnp.maximum(_count(shard) - _skips_itself(term, diagonal), 1)


def _skips_itself(term: str, diagonal: bool) -> bool:
    return not diagonal and term in ("q|q", "a|a")


def _divergences(kernel: str, student: _Space, teacher: _Space, where: Array, diagonal: bool) -> dict[str, Array]:
    """Returns KL(softmax(teacher) || softmax(student)) of each row [B] by term; zero for rows without columns."""
    divergences: dict[str, Array] = {}
    for term in student.rows:
        keep = where[None, :] & ~(_skips_itself(term, diagonal) & jnp.eye(len(where), dtype=bool))
        counts = where & jnp.any(keep, axis=1)
        # Rows without columns keep all of them and are set to zero below, as the softmax of an empty set is undefined.
        keep = keep | ~counts[:, None]
        log_student, log_teacher = (
            jax.nn.log_softmax(jnp.where(keep, scores, -jnp.inf), axis=1)
            for scores in _score_tiles(kernel, *_facing(student, teacher, [term]))
        )
        entries = jnp.exp(log_teacher) * jnp.where(keep, log_teacher - log_student, 0)
        divergences[term] = jnp.where(counts, jnp.sum(entries, axis=1), 0)
    return divergences


def _streamed_divergences(
    kernel: str, student: _Space, teacher: _Space, shard: Shard, diagonal: bool, tile: int
) -> dict[str, Array]:
    """Returns `_divergences` [R] by tiles of scores, with one pass for the terms that share columns."""
    divergences: dict[str, Array] = {}
    index = shard.index()
    columns_where = shard.all_gather(shard.where)
    for side in "qa":
        terms = [term for term in student.rows if term.startswith(side)]
        if not terms:
            continue
        skipped = [index if _skips_itself(term, diagonal) else jnp.full_like(index, -1) for term in terms]
        statistics = row_statistics(
            functools.partial(_score_tiles, kernel),
            _kept,
            *_facing(student, teacher, terms),
            jnp.concatenate(skipped),
            (jnp.arange(len(columns_where)), columns_where),
            tile=tile,
        )
        rows = statistics.difference - statistics.teacher_log_sum_exp + statistics.log_sum_exp
        counts = jnp.tile(shard.where, len(terms)) & (statistics.kept > 0)
        divergences |= zip(terms, jnp.split(jnp.where(counts, rows, 0), len(terms)), strict=True)
    return divergences


def _facing(student: _Space, teacher: _Space, terms: list[str]) -> tuple[tuple, tuple]:
    """Returns the student's and the teacher's rows of some terms, concatenated, and the columns that they share."""
    rows = (
        jax.tree.map(lambda *x: jnp.concatenate(x), *(space.rows[term] for term in terms))
        for space in (student, teacher)
    )
    return tuple(rows), tuple(space.columns[terms[0][0]] for space in (student, teacher))


def _score_tiles(
    kernel: str, rows: tuple[Operands, Operands], columns: tuple[Operands, Operands]
) -> tuple[Array, Array]:
    student, teacher = (_kernel_scores(kernel, *operands) for operands in zip(rows, columns, strict=True))
    return student, teacher


def _kept(skipped: Array, columns: Pair) -> Array:
    index, where = columns
    return where[None, :] & (skipped[:, None] != index[None, :])


class _Moments(NamedTuple):
    """Mean and variance of one side's embeddings in one space."""

    mean: Array  # [1, E]
    variance: Array  # [], mean squared distance from the mean


def _moments(x: Array, where: Array, total: Callable[[Array], Array]) -> _Moments:
    """Computes moments of embeddings [B, E], zero where `where` [B] is false; `total` sums over devices."""
    x = jax.lax.stop_gradient(x)
    count = jnp.maximum(total(jnp.sum(where, dtype=x.dtype)), 1)
    mean = total(jnp.sum(x, axis=0, keepdims=True)) / count
    squares = jnp.where(where[:, None], jnp.square(x - mean), 0)
    return _Moments(mean, total(jnp.sum(squares)) / count)


def _mean_squared_distance(given: _Moments, columns: _Moments) -> Array:
    """Returns the mean of |u - v|^2 over all pairs, from the moments of u and v; 1 if all points coincide."""
    distance = given.variance + columns.variance + jnp.sum(jnp.square(given.mean - columns.mean))
    # Points that coincide up to rounding have equal scores for any width. GPUs keep subnormal numbers, whose inverse
    # overflows.
    limits = jnp.finfo(distance.dtype)
    rounding = (8 * limits.eps) ** 2 * jnp.sum(jnp.square(given.mean))
    return jnp.where(distance > jnp.maximum(rounding, limits.tiny), distance, 1)


def _row_operands(kernel: str, given: Array, own: Array, temperature: float | Array, width: float | Array) -> Operands:
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


def _column_operands(kernel: str, columns: Array) -> Operands:
    """Returns the operands, with leading axis C, of columns u [C, E]."""
    if kernel == "inner":
        return (columns,)
    if kernel == "pkt":
        return (l2_normalize(columns),)
    return columns, _half_squares(columns)


def _kernel_scores(kernel: str, rows: Operands, columns: Operands) -> Array:
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
