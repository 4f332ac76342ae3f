"""Poolings against loops, with texts of all lengths."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from endx_jax.models.pooling import POOLINGS, first, mean

ENCODINGS = np.random.default_rng(0).normal(size=(4, 5, 3)).astype(np.float32)
LENGTHS = (5, 2, 1, 0)
MASK = jnp.asarray(np.arange(5) < np.array(LENGTHS)[:, None])


def test_mean_is_the_sum_over_real_tokens_by_their_number():
    expected = [ENCODINGS[b, :n].sum(axis=0) / n for b, n in enumerate(LENGTHS[:3])]
    np.testing.assert_allclose(mean(jnp.asarray(ENCODINGS), MASK)[:3], expected, rtol=1e-6)


def test_mean_of_a_visible_example():
    encodings = jnp.array([[[1.0, 10.0], [3.0, 20.0], [100.0, 100.0]]])
    np.testing.assert_array_equal(mean(encodings, jnp.array([[True, True, False]])), [[(1 + 3) / 2, (10 + 20) / 2]])


def test_first_is_the_first_token():
    np.testing.assert_array_equal(first(jnp.asarray(ENCODINGS), MASK), ENCODINGS[:, 0])


@pytest.mark.parametrize("name", POOLINGS)
def test_a_text_without_tokens_is_finite(name):
    pool = POOLINGS[name]
    value, gradient = jax.value_and_grad(lambda x: jnp.sum(pool(x, MASK) ** 2))(jnp.asarray(ENCODINGS))
    chex.assert_tree_all_finite((value, gradient))
    if name == "mean":
        np.testing.assert_array_equal(mean(jnp.asarray(ENCODINGS), MASK)[3], [0, 0, 0])


@pytest.mark.parametrize("name", POOLINGS)
def test_pooling_is_float32_at_least(name):
    # 300 ones: counted in bfloat16, 257 of them would be 256.
    ones, mask = jnp.ones((1, 300, 2), jnp.bfloat16), jnp.ones((1, 300), bool)
    pooled = POOLINGS[name](ones, mask)
    assert pooled.dtype == jnp.float32
    np.testing.assert_array_equal(pooled, [[1, 1]])
    with jax.enable_x64(True):
        assert POOLINGS[name](ones.astype(jnp.float64), mask).dtype == jnp.float64
