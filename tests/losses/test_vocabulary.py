"""The likelihood of words over a large vocabulary against its plain form, and what it costs."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from endx_jax.losses import vocabulary_nll
from endx_jax.losses.vocabulary import TILE, _tiles

N, W, V = 11, 3, 7


def drawn(words: int, dtype=np.float32) -> tuple:
    """Hidden vectors, kernel and bias; words [N, K]; weights of which many are zero, and one row's all."""
    draw = np.random.default_rng(words)
    moving = tuple(draw.normal(size=shape).astype(dtype) for shape in ((N, W), (V, W), (V,)))
    weights = draw.integers(0, 3, (N, words)).astype(dtype) / 2
    weights[4] = 0
    return moving, draw.integers(0, V, (N, words)), weights


def plain(hidden, kernel, bias, words, weights):
    """The same with all scores in one array."""
    logarithms = jax.nn.log_softmax(hidden @ kernel.T + bias[None], axis=1)
    return -jnp.sum(weights * jnp.take_along_axis(logarithms, words, axis=1))


def nll(*arrays, tile=TILE):
    return vocabulary_nll(*arrays, tile=tile)[0]


def value_and_gradient(loss, moving, words, weights):
    return jax.jit(jax.value_and_grad(lambda moving: loss(*moving, words, weights)))(moving)


@pytest.mark.parametrize(("words", "tile"), [(1, 4), (5, 4), (5, 64)])
def test_value_and_gradient_are_those_of_the_plain_form(words, tile):
    with jax.enable_x64(True):
        moving, *rest = drawn(words, np.float64)
        found = value_and_gradient(functools.partial(nll, tile=tile), moving, *rest)
        expected = value_and_gradient(plain, moving, *rest)
        chex.assert_trees_all_close(found, expected, rtol=1e-12, atol=1e-12)
        assert all(np.abs(gradient).max() > 0.1 for gradient in found[1])


def test_the_value_alone_is_the_value_beside_a_gradient():
    moving, words, weights = drawn(2)
    alone, metrics = jax.jit(vocabulary_nll)(*moving, words, weights)
    assert metrics["words"] == weights.sum()
    np.testing.assert_allclose(alone, value_and_gradient(nll, moving, words, weights)[0], rtol=1e-6)


def test_rows_without_weight_affect_nothing():
    (hidden, kernel, bias), words, weights = drawn(3)
    garbled = np.where(weights == 0, 2**30, words)
    spoilt = np.where(np.any(weights, axis=1, keepdims=True), hidden, np.nan)
    expected = value_and_gradient(nll, (hidden, kernel, bias), words, weights)
    found = value_and_gradient(nll, (spoilt, kernel, bias), garbled, weights)
    chex.assert_trees_all_equal(found, expected)
    np.testing.assert_array_equal(found[1][0][4], 0)


def test_of_no_rows_the_loss_and_its_gradients_are_zero():
    (hidden, *others), words, weights = drawn(2)
    value, gradients = value_and_gradient(nll, (hidden[:0], *others), words[:0], weights[:0])
    chex.assert_trees_all_equal((value, gradients), jax.tree.map(np.zeros_like, (np.float32(0), (hidden[:0], *others))))


def test_padding_is_not_computed():
    """Of 11 rows 3 count: they fill two tiles of 2, and no other tile is gone through, which no result shows."""
    weights = jnp.zeros(N).at[jnp.array([2, 7, 10])].set(0.5)
    tiles, gather = _tiles(jnp.arange(N, dtype=jnp.float32)[:, None], weights, 2)
    assert tiles == 2
    rows, counts, places = (np.concatenate([gather(number)[part] for number in range(2)]) for part in range(3))
    np.testing.assert_array_equal(places[:3], [2, 7, 10])
    np.testing.assert_array_equal(rows[:3, 0], [2, 7, 10])
    np.testing.assert_array_equal(counts, [0.5, 0.5, 0.5, 0])


@pytest.mark.parametrize("scale", [1e2, 1e-30])
def test_large_and_vanishing_scores_stay_finite(scale):
    (hidden, kernel, bias), words, weights = drawn(2)
    found = value_and_gradient(nll, (scale * hidden, scale * kernel, bias), words, weights)
    chex.assert_tree_all_finite(found)
    assert found[0] > 0


def test_bfloat16_states_are_summed_in_float32():
    (hidden, kernel, bias), words, weights = drawn(2)
    half = hidden.astype(jnp.bfloat16)
    value, gradients = value_and_gradient(nll, (half, kernel, bias), words, weights)
    exact, expected = value_and_gradient(nll, (half.astype(np.float32), kernel, bias), words, weights)
    assert [value.dtype, *(x.dtype for x in gradients)] == [jnp.float32, jnp.bfloat16, jnp.float32, jnp.float32]
    np.testing.assert_allclose(value, exact, rtol=2e-2)
    for found, wanted in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(found.astype(np.float32), wanted, atol=2e-2 * np.abs(wanted).max())
