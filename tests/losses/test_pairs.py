"""Losses of scored pairs against visible arithmetic, and their gradients against finite differences."""

import math

import chex
import jax
import numpy as np
import pytest
from helpers import without_metrics

from endx_jax import losses

pair_softmax = jax.jit(without_metrics(losses.pair_softmax))
pair_binary = jax.jit(without_metrics(losses.pair_binary))

LOSSES = [pair_softmax, pair_binary]
SCORES = np.float32([[1.0, 0.0, -1.0], [0.5, 2.0, 0.5]])
COUNTS = np.array([[True, True, True], [True, False, True]])


def test_softmax_is_the_right_answers_share():
    first = -math.log(math.e / (math.e + 1 + math.exp(-1)))
    second = -math.log(1 / (1 + math.exp(1.5) + 1))
    np.testing.assert_allclose(pair_softmax(SCORES), (first + second) / 2, rtol=1e-6)
    np.testing.assert_allclose(pair_softmax(SCORES, where=COUNTS), (first + math.log(2)) / 2, rtol=1e-6)


def test_binary_takes_every_pair_by_itself():
    def wrong(score):
        return -math.log(1 - 1 / (1 + math.exp(-score)))

    def right(score):
        return -math.log(1 / (1 + math.exp(-score)))

    parts = [right(1.0), wrong(0.0), wrong(-1.0), right(0.5), wrong(0.5)]
    np.testing.assert_allclose(pair_binary(SCORES, where=COUNTS), sum(parts) / 5, rtol=1e-6)
    np.testing.assert_allclose(pair_binary(SCORES), (sum(parts) + wrong(2.0)) / 6, rtol=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_masked_scores_may_be_nan_and_large_ones_overflow_nothing(loss):
    differentiate = jax.jit(jax.value_and_grad(loss))
    found, gradient = jax.device_get(differentiate(np.where(COUNTS, SCORES, np.nan), where=COUNTS))
    np.testing.assert_allclose(found, loss(SCORES, where=COUNTS))
    chex.assert_tree_all_finite(gradient)
    assert gradient[1, 1] == 0
    assert (gradient[:, 0] < 0).all()
    assert (gradient[:, 1:][COUNTS[:, 1:]] > 0).all()
    found, gradient = differentiate(np.float32([[-1e4, 1e4], [1e4, -1e4]]))
    np.testing.assert_allclose(found, 1e4 if loss is pair_softmax else 0.5e4)
    chex.assert_tree_all_finite(gradient)


def test_a_question_without_wrong_answers_costs_nothing_and_small_losses_keep_their_digits():
    differentiate = jax.jit(jax.value_and_grad(pair_softmax))
    found, gradient = jax.device_get(differentiate(SCORES, where=np.array([[True, False, False]] * 2)))
    assert found == 0
    assert not gradient.any()
    np.testing.assert_allclose(pair_softmax(np.float32([[30.0, 0.0]])), math.exp(-30), rtol=1e-5)
