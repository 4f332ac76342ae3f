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

`width` is the sigma^2 of ENDX Eqs. 7-8, which use Eq. 9 with 2 sigma^2: for each space and term, the mean squared
distance of the compared pairs, without a gradient.
"""

import functools
import operator
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp

from endx_jax.checks import check_arrays, check_positive
from endx_jax.errors import EndxError
from endx_jax.losses.false_negatives import pair_ids
from endx_jax.losses.rows import dot, mean_over_rows, softmax_divergence
from endx_jax.losses.shard import AxisName, all_gather, batch_mean, included_rows, psum
from endx_jax.numerics import l2_normalize
from endx_jax.settings import check_choice

Array = jax.Array
Pair = tuple[Array, Array]
Scalar = float | Array

TERMS = ("a|q", "q|q", "q|a", "a|a")
REDUCTIONS = ("batchmean", "mean")
SPACES = ("dual", "cross")

# Minimum of (cos + 1) / 2 in `pkt`, for a finite logarithm of opposite embeddings, like the epsilon in PKT's code.
PKT_FLOOR = 1e-7


def _negative_half_distances(v: Array, u: Array, width: Array) -> Array:
    """Returns -|u - v|^2 / (2 width) of a vector v [E] and columns u [C, E]."""
    distances = jnp.sum(jnp.square(v)) + jnp.sum(jnp.square(u), axis=1) - 2 * dot(v, u)
    return -jnp.maximum(distances, 0) / (2 * width)


# Functions (v [E], u [C, E], width) -> s(u, v) [C].
KERNELS = {
    "inner": lambda v, u, _: dot(v, u),
    "gaussian": lambda v, u, width: jnp.exp(_negative_half_distances(v, u, width)),
    "sne": _negative_half_distances,
    "pkt": lambda v, u, _: jnp.log(jnp.maximum((dot(l2_normalize(v), l2_normalize(u)) + 1) / 2, PKT_FLOOR)),
}
WITH_WIDTH = ("gaussian", "sne")


def geometry_alignment(
    dual: Pair,
    cross: Pair,
    *,
    weights: Mapping[str, Scalar],
    kernel: str = "inner",
    temperature: tuple[Scalar, Scalar] = (1.0, 1.0),
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
      diagonal: includes j = i in `q|q` and `a|a`. SNE sets p(i|i) = 0; ENDX's Eqs. 7-8 and PKT's code include it. The
        matched pair is always included in `a|q` and `q|a`.
      reduction: `batchmean`, the mean over i of the sum over j (Eq. 11), or `mean`, the mean over all compared (i, j),
        as in PKT's code.
      stop_gradient: treats p_cross as constant: no gradient flows to `cross` or its temperature.
      where: bool [B], pairs to include; other pairs are neither rows nor columns, even if NaN.
      tile: rows of scores whose arrays are in memory at a time, for memory O(tile B + B E); gradients are computed with
        the values. None computes whole arrays of scores [B, B]. Both give the same values and gradients.
      axis_name: inside `jax.shard_map`, the mesh axis or axes over which the batch is split. Arrays are then this
        device's rows, and all devices return the results of the whole batch.

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
    _check(weights, kernel, temperature, reduction)
    _check_pairs(dual, cross, where, "F")
    ids = pair_ids(len(dual[0]), axis_name, where=where)
    student, teacher = (
        (_sides(kernel, pair, ids.where, axis_name), jnp.asarray(own_temperature))
        for pair, own_temperature in zip((dual, cross), temperature, strict=True)
    )
    spaces = student, jax.lax.stop_gradient(teacher) if stop_gradient else teacher
    count = psum(jnp.sum(ids.where, dtype=jax.dtypes.canonicalize_dtype(float)), axis_name)
    columns = {side: all_gather(([sides[side] for sides, _ in spaces], ids), axis_name) for side in "qa"}
    terms = {}
    for term in sorted(weights, key=TERMS.index):
        facing, given = term.split("|")
        skips_itself = not diagonal and facing == given
        compared = jnp.maximum(count - skips_itself, 1)
        widths: list = [None, None]
        if kernel in WITH_WIDTH:
            # The mean is over all pairs; without the diagonal, whose distances are 0, the sum is over fewer pairs.
            fewer = jnp.maximum(count, 1) / compared
            widths = [_mean_squared_distance(x[facing], x[given], ids.where, axis_name) * fewer for x, _ in spaces]
        rows = [sides[given] for sides, _ in spaces], ids.pair
        shared = columns[facing], [*zip([own_temperature for _, own_temperature in spaces], widths, strict=True)]
        divergence = functools.partial(_divergence, KERNELS[kernel], skips_itself)
        mean, _ = mean_over_rows(divergence, rows, shared, ids.where, tile, axis_name)
        terms[term] = mean / compared if reduction == "mean" else mean
    return functools.reduce(operator.add, [weights[term] * value for term, value in terms.items()]), terms


def _divergence(kernel: Callable, skips_itself: bool, row: tuple, shared: tuple) -> tuple[Array, dict]:
    """Returns the divergence of one row; zero if there are no columns."""
    (given, pair), ((facing, ids), divisors) = row, shared
    keep = ids.where & (ids.pair != pair) if skips_itself else ids.where
    student, teacher = (
        kernel(v, u, width) / temperature for v, u, (temperature, width) in zip(given, facing, divisors, strict=True)
    )
    return softmax_divergence(student, teacher, keep), {}


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
    where = pair_ids(len(dual[0]), where=where).where
    cross = jax.lax.stop_gradient(cross) if stop_gradient else cross
    squares = [
        jnp.sum(jnp.square(included_rows(d, where) - included_rows(c, where)), axis=1)
        for d, c in zip(dual, cross, strict=True)
    ]
    return batch_mean((squares[0] + squares[1]) / (2 * dual[0].shape[1]), where, axis_name), {}


def _check(weights, kernel, temperature, reduction) -> None:
    if not isinstance(temperature, Sequence) or len(temperature) != len(SPACES):
        raise EndxError(f"temperature is {temperature!r}; it must be a pair, of the dual and of the cross space")
    for space, own_temperature in zip(SPACES, temperature, strict=True):
        check_positive(f"temperature of the {space} space", own_temperature)
    check_choice("kernel", kernel, KERNELS)
    check_choice("reduction", reduction, REDUCTIONS)
    if not weights:
        raise EndxError(f"weights is empty; give one or more of the terms {', '.join(TERMS)}")
    for term in weights:
        check_choice("term of weights", term, TERMS)


def _check_pairs(dual: Pair, cross: Pair, where: Array | None, cross_width: str) -> None:
    """Checks the embeddings of both spaces; `cross_width` is the letter of the cross embeddings' width."""
    arrays: dict = {}
    for space, pair, width in zip(SPACES, (dual, cross), ("E", cross_width), strict=True):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise EndxError(
                f"{space} is of type {type(pair).__name__}; it must be a pair of question and answer embeddings"
            )
        arrays |= {f"{space} question": (pair[0], f"[B, {width}]"), f"{space} answer": (pair[1], f"[B, {width}]")}
    check_arrays(arrays | {"where": (where, "bool [B]")})


def _sides(kernel: str, pair: Pair, where: Array, axis_name: AxisName) -> dict[str, Array]:
    """Returns the embeddings of a space by side, with zeros for excluded pairs."""
    sides = {side: included_rows(x, where) for side, x in zip("qa", pair, strict=True)}
    if kernel not in WITH_WIDTH:
        return sides
    # Distances do not depend on the origin. A central one keeps squared norms small, which reduces cancellation.
    question, answer = (_mean(jax.lax.stop_gradient(x), where, axis_name) for x in sides.values())
    return {side: x - (question + answer)[None] / 2 for side, x in sides.items()}


def _mean(x: Array, where: Array, axis_name: AxisName) -> Array:
    """Returns the mean [E] of the included rows [R, E] of all devices."""
    return jax.vmap(lambda column: batch_mean(column, where, axis_name), 1)(x)


def _mean_squared_distance(u: Array, v: Array, where: Array, axis_name: AxisName) -> Array:
    """Returns the mean of |u_j - v_i|^2 over all i and j, from the moments; 1 if all points coincide."""
    u, v = jax.lax.stop_gradient((u, v))
    means = [_mean(x, where, axis_name) for x in (u, v)]
    variances = [
        batch_mean(jnp.sum(jnp.square(x - mean[None]), axis=1), where, axis_name)
        for x, mean in zip((u, v), means, strict=True)
    ]
    distance = variances[0] + variances[1] + jnp.sum(jnp.square(means[0] - means[1]))
    # Points that coincide up to rounding have equal scores for any width. GPUs keep subnormal numbers, whose inverse
    # overflows.
    limits = jnp.finfo(distance.dtype)
    rounding = (8 * limits.eps) ** 2 * jnp.sum(jnp.square(means[1]))
    return jnp.where(distance > jnp.maximum(rounding, limits.tiny), distance, 1)
