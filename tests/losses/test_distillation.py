"""Distillation of listed scores against visible arithmetic and twins in plain loops."""

import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import split_over

from endx_jax.losses import listwise_kl, margin_mse

B, N = 8, 4


def drawn() -> tuple:
    """Scores of student and teacher, NaN where left out: whole rows, right answers, and all negatives of a row too."""
    draw = np.random.default_rng(0)
    where = draw.random((B, N)) < 0.7
    where[:, 0] = True
    where[1], where[2, 0], where[3, 1:] = False, False, False
    return *(np.where(where, x, np.nan) for x in draw.normal(size=(2, B, N))), where


def margin_mse_by_loops(scores, teacher, where) -> float:
    pairs = [(i, j) for i in range(B) for j in range(1, N) if where[i, 0] and where[i, j]]
    errors = [(scores[i, 0] - scores[i, j] - teacher[i, 0] + teacher[i, j]) ** 2 for i, j in pairs]
    return sum(errors) / len(errors)


def listwise_kl_by_loops(scores, teacher, where) -> float:
    found = []
    for i in range(B):
        kept = [j for j in range(N) if where[i, 0] and where[i, j]]
        if len(kept) > 1:
            log_p, log_q = (
                [x[i, j] - math.log(sum(math.exp(x[i, k]) for k in kept)) for j in kept] for x in (teacher, scores)
            )
            found.append(sum(math.exp(p) * (p - q) for p, q in zip(log_p, log_q, strict=True)))
    return sum(found) / len(found)


TWINS = {margin_mse: margin_mse_by_loops, listwise_kl: listwise_kl_by_loops}


@pytest.mark.parametrize("loss", TWINS)
@pytest.mark.parametrize("devices", [1, 8])
def test_values_and_gradients_are_the_twin_s(loss, devices):
    scores, teacher, where = drawn()

    def compute(scores, teacher, where):
        return loss(scores, teacher, where=where, axis_name="data")[0]

    with jax.enable_x64(True):
        differentiate = jax.jit(jax.value_and_grad(split_over(devices, compute)))
        value, gradient = jax.device_get(differentiate(scores, teacher, where))
    np.testing.assert_allclose(value, TWINS[loss](scores, teacher, where), rtol=1e-10)
    # Of the whole loss along the gradient, by finite differences.
    step = 1e-6 * gradient
    change = TWINS[loss](scores + step, teacher, where) - TWINS[loss](scores - step, teacher, where)
    np.testing.assert_allclose(change, 2e-6 * np.sum(gradient**2), rtol=1e-6)


def test_a_visible_example():
    scores, teacher = jnp.array([[2.0, 1.0, 0.0]]), jnp.array([[3.0, 0.0, 4.0]])
    # Margins of the student are 1 and 2, of the teacher 3 and -1.
    loss, metrics = jax.jit(margin_mse)(scores, teacher)
    assert (float(loss), float(metrics["teacher_agreement"])) == (((1 - 3) ** 2 + (2 + 1) ** 2) / 2, 0.5)
    assert float(jax.jit(listwise_kl)(scores, scores + 7)[0]) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("loss", TWINS)
def test_nothing_to_compare_is_zero_with_finite_gradients(loss):
    for where in (np.zeros((2, 3), bool), np.array([[True, False, False], [False, True, True]])):
        scores = np.where(where & where[:, :1], 1.0, np.nan).astype(np.float32)
        found = jax.jit(jax.value_and_grad(lambda x, where: loss(x, x, where=where)[0]))(scores, where)
        chex.assert_trees_all_equal(found, (jnp.zeros(()), jnp.zeros((2, 3))))
