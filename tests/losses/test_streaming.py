"""The streamed row statistics against whole matrices."""

import functools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxprs import equations, largest_array

from endx_jax.losses import streaming
from endx_jax.losses.streaming import RowStatistics, row_statistics

R, C, E = 11, 7, 3


def student_alone(rows, columns):
    return (jnp.matmul(rows["student"], columns["student"].T, precision="highest"),)


def student_and_teacher(rows, columns):
    return (*student_alone(rows, columns), jnp.matmul(rows["teacher"], columns["teacher"].T, precision="highest"))


def keep_some(rows, columns):
    """Row 0 keeps nothing, and neither do the first two tiles of four columns of row 1."""
    return (rows[:, None] > 0) & ((rows[:, None] + columns[None, :]) % 3 != 0) & (columns[None, :] >= 6 % rows[:, None])


def keep_all(rows, columns):
    return None


def whole_matrices(scores, keep, rows, columns, row_marks, column_marks) -> RowStatistics:
    """The statistics as they are defined, differentiated by JAX."""
    student, *teacher = scores(rows, columns)
    kept = keep(row_marks, column_marks)
    kept = jnp.ones(student.shape, bool) if kept is None else kept
    # A row that keeps nothing keeps everything, and is then replaced: no gradient is that of an empty sum.
    some = jnp.any(kept, axis=1)
    filled = kept | ~some[:, None]

    def log_sum_exp(scores):
        return jnp.where(some, jnp.log(jnp.sum(jnp.exp(scores), axis=1, where=filled)), -jnp.inf)

    difference = None
    if teacher:
        weights = jnp.exp(teacher[0]) / jnp.sum(jnp.exp(teacher[0]), axis=1, where=filled, keepdims=True)
        difference = jnp.sum(weights * (teacher[0] - student), axis=1, where=kept)
    return RowStatistics(
        log_sum_exp(student),
        log_sum_exp(teacher[0]) if teacher else None,
        difference,
        jnp.max(student, axis=1, where=kept, initial=-jnp.inf),
        jnp.sum(kept, axis=1),
    )


def operands(rows: int = R, columns: int = C) -> tuple:
    draw = np.random.default_rng(0)
    names = ("student", "teacher")
    return tuple({name: 2 * draw.normal(size=(size, E)) for name in names} for size in (rows, columns))


def weighted(function, scores, keep, rows, columns):
    """One number of all the statistics, weighted so that it tells them and their rows apart; and the statistics."""
    sizes = [x["student"].shape[0] for x in (rows, columns)]
    found = function(scores, keep, rows, columns, *map(jnp.arange, sizes))
    total = 0.0
    for i, statistic in enumerate(x for x in found[:3] if x is not None):
        weights = jnp.cos(i + jnp.arange(sizes[0]))
        total += jnp.sum(jnp.where(found.kept > 0, weights * statistic, 0))
    return total, found


def values_and_gradients(function, scores, keep) -> tuple:
    compute = jax.value_and_grad(functools.partial(weighted, function, scores, keep), argnums=(0, 1), has_aux=True)
    with jax.enable_x64(True):
        return jax.device_get(jax.jit(compute)(*operands()))


def agree(found, expected) -> None:
    chex.assert_trees_all_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("scores", "keep", "tile"),
    [(student_and_teacher, keep_some, 2), (student_alone, keep_some, 4), (student_and_teacher, keep_all, 100)],
)
def test_values_and_gradients_are_those_of_whole_matrices(scores, keep, tile):
    found = values_and_gradients(functools.partial(row_statistics, tile=tile), scores, keep)
    expected = values_and_gradients(whole_matrices, scores, keep)
    agree(found, expected)
    (_, statistics), _ = found
    assert statistics.log_sum_exp.dtype == np.float64
    if keep is keep_some:
        assert statistics.kept[0] == 0
        assert statistics.log_sum_exp[0] == statistics.highest[0] == -np.inf


@pytest.mark.parametrize("tile", [1, 3, 100])
def test_sums_over_pairs_stream_as_the_softmax_does(tile):
    """The scores are any function of a row and a column: here softplus, as in a sigmoid loss."""

    def softplus(rows, columns):
        return (jax.nn.softplus(student_alone(rows, columns)[0]),)

    def streamed(rows, columns):
        marks = jnp.arange(R), jnp.arange(C)
        return streaming.reduce_scores(streaming.SUM, softplus, keep_some, rows, columns, *marks, tile=tile).total

    def dense(rows, columns):
        kept = keep_some(jnp.arange(R), jnp.arange(C))
        return jnp.sum(jnp.where(kept, softplus(rows, columns)[0], 0), axis=1)

    def compute(function):
        weights = jnp.arange(1.0, R + 1)
        loss = lambda rows, columns: jnp.sum(weights * function(rows, columns))  # noqa: E731
        return jax.jit(lambda *both: (function(*both), jax.grad(loss, (0, 1))(*both)))(*operands())

    with jax.enable_x64(True):
        chex.assert_trees_all_close(compute(streamed), compute(dense), rtol=1e-10)


def test_scores_of_any_size_neither_overflow_nor_vanish():
    rows = {"student": np.full((2, E), 100.0, np.float32)}
    columns = {"student": np.array([[100.0], [-100.0], [99.99]], np.float32) * np.ones(E, np.float32)}
    found = row_statistics(student_alone, keep_all, rows, columns, jnp.arange(2), jnp.arange(3), tile=1)
    np.testing.assert_allclose(found.log_sum_exp, 30000 + math.log1p(math.exp(-3)), rtol=1e-6)


def test_no_array_is_as_large_as_all_scores():
    def largest(function):
        compute = jax.grad(functools.partial(weighted, function, student_and_teacher, keep_some), (0, 1), has_aux=True)
        return largest_array(jax.make_jaxpr(compute)(*operands(40, 48)))

    assert largest(functools.partial(row_statistics, tile=8)) <= 48 * E
    assert largest(whole_matrices) == 40 * 48


def test_a_constant_teacher_has_no_gradient_worked_out():
    def products(constant: bool) -> int:
        def compute(rows, columns):
            if constant:
                rows, columns = ({**x, "teacher": jax.lax.stop_gradient(x["teacher"])} for x in (rows, columns))
            return weighted(functools.partial(row_statistics, tile=8), student_and_teacher, keep_all, rows, columns)[0]

        jaxpr = jax.make_jaxpr(jax.jit(jax.grad(compute, (0, 1))))(*operands())
        made = [x.outvars[0].aval.size for x in equations(jaxpr) if x.primitive.name == "dot_general"]
        return len([size for size in made if size > 0])

    # Two scores forward, the same two backward, and then rows' and columns' gradients from each score that moves.
    assert products(constant=False) == 2 + 2 + 2 * 2
    assert products(constant=True) == 2 + 2 + 2 * 1
