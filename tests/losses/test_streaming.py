"""The streamed row statistics against whole matrices, and what they cost on several devices."""

import functools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import split_over
from jaxprs import equations

from endx_jax import losses
from endx_jax.losses.geometry import TERMS
from endx_jax.losses.streaming import RowStatistics, row_statistics
from endx_jax.planning.programs import collectives

R, C, E = 11, 7, 3
ROWS, WIDTH, TILE = 512, 32, 256  # on each device


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


def operands() -> tuple:
    draw = np.random.default_rng(0)
    return tuple({name: 2 * draw.normal(size=(size, E)) for name in ("student", "teacher")} for size in (R, C))


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


@pytest.mark.parametrize(
    ("scores", "keep", "tile"),
    [(student_and_teacher, keep_some, 2), (student_alone, keep_some, 4), (student_and_teacher, keep_all, 100)],
)
def test_values_and_gradients_are_those_of_whole_matrices(scores, keep, tile):
    found = values_and_gradients(functools.partial(row_statistics, tile=tile), scores, keep)
    expected = values_and_gradients(whole_matrices, scores, keep)
    chex.assert_trees_all_close(found, expected, rtol=0, atol=1e-12)
    (_, statistics), _ = found
    assert statistics.log_sum_exp.dtype == np.float64
    if keep is keep_some:
        assert statistics.kept[0] == 0
        assert statistics.log_sum_exp[0] == statistics.highest[0] == -np.inf


def test_scores_of_any_size_neither_overflow_nor_vanish():
    rows = {"student": np.full((2, E), 100.0, np.float32)}
    columns = {"student": np.array([[100.0], [-100.0], [99.99]], np.float32) * np.ones(E, np.float32)}
    found = row_statistics(student_alone, keep_all, rows, columns, jnp.arange(2), jnp.arange(3), tile=1)
    np.testing.assert_allclose(found.log_sum_exp, 30000 + math.log1p(math.exp(-3)), rtol=1e-6)


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


# What a streamed loss costs when the batch is split over devices, read from the compiled programs.


def softmax(dual, _, **cut):
    return losses.in_batch_softmax(*dual, **cut)[0]


def alignment(dual, cross, **cut):
    return losses.geometry_alignment(dual, cross, weights=dict.fromkeys(TERMS, 1.0), **cut)[0]


# Of arrays of the whole batch, each device holds the gathered columns and, of the student's, their gradients.
GATHERED = {softmax: 2, alignment: 6}


@functools.cache
def compiled(loss, devices):
    cut = split_over(devices, functools.partial(loss, tile=TILE, axis_name="data"))
    like = jax.ShapeDtypeStruct((devices * ROWS, WIDTH), jnp.float32)
    quickly = {"xla_backend_optimization_level": 0}
    return jax.jit(jax.value_and_grad(cut)).lower((like, like), (like, like)).compile(compiler_options=quickly)


@pytest.mark.parametrize("loss", GATHERED)
def test_no_collective_is_in_a_loop_and_memory_grows_by_the_gathered_embeddings_alone(loss):
    found = collectives(compiled(loss, 8).as_text())
    assert {collective.kind for collective in found} == {"all-gather", "reduce-scatter", "all-reduce"}
    assert {(collective.loops, collective.times) for collective in found} == {(0, 1)}

    def beside_the_gathered(devices):
        array = devices * ROWS * WIDTH * 4
        return compiled(loss, devices).memory_analysis().temp_size_in_bytes - GATHERED[loss] * array

    two, eight = beside_the_gathered(2), beside_the_gathered(8)
    assert two > TILE * TILE * 4, "more was taken off than the gathered embeddings"
    assert eight < 1.1 * two
