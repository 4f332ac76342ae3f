import jax
import jax.numpy as jnp
import numpy as np
import pytest

from endx_jax.numerics import Quantized, at_least_float32, dequantize, l2_normalize, quantize


@pytest.mark.parametrize("given", ["bfloat16", "float16", "float32", "float64"])
def test_at_least_float32(given):
    with jax.enable_x64(True):
        assert at_least_float32(jnp.ones(2, given)).dtype == ("float64" if given == "float64" else "float32")


# Each as one program: compiling operation by operation takes longer.
normalized = jax.jit(l2_normalize, static_argnames="epsilon")
rounded, restored = jax.jit(quantize), jax.jit(dequantize)


def test_l2_normalize_gives_unit_norms_and_at_zero_zero_with_the_slope_of_epsilon():
    for size in (1e-5, 1.0, 1e5, 1e18):
        x = (size * np.random.default_rng(0).normal(size=(3, 8))).astype(np.float32)
        np.testing.assert_allclose(np.linalg.norm(normalized(x), axis=1), 1, rtol=1e-6)
    slope = jax.jit(jax.value_and_grad(lambda x: jnp.sum(l2_normalize(x, epsilon=1e-3))))
    value, gradient = slope(np.zeros((2, 3), np.float32))
    assert value == 0
    np.testing.assert_allclose(gradient, np.full((2, 3), 1 / 1e-3), rtol=1e-6)
    for dtype in (jnp.bfloat16, jnp.float16):  # in float16 the square of 300 overflows, and that of epsilon is zero
        found = normalized(np.array([[300.0, 400.0], [0.0, 0.0]], dtype))
        assert found.dtype == jnp.float32
        np.testing.assert_allclose(found, [[0.6, 0.8], [0, 0]], rtol=1e-6)


def test_the_gradient_of_l2_normalize():
    from jax.test_util import check_grads

    with jax.enable_x64(True):
        x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4)))
        check_grads(jax.jit(l2_normalize), (x,), order=1, modes=["rev"], atol=1e-6, rtol=1e-6)


def test_values_are_whole_steps_of_the_largest_over_127_and_move_by_half_a_step_at_most():
    found = rounded(np.float32([[127, -3, 0.6, 0.4], [-12.7, 0.0, 6.39, 0.06]]))
    np.testing.assert_array_equal(found.codes, [[127, -3, 1, 0], [-127, 0, 64, 1]])
    np.testing.assert_allclose(found.scales, [1, 0.1], rtol=1e-6)
    assert (found.codes.dtype, found.scales.dtype) == (np.int8, np.float32)
    embeddings = np.random.default_rng(0).normal(size=(50, 32)).astype(np.float32)
    broken = embeddings.copy()
    broken[[0, 1], [1, 0]] = np.nan, np.inf
    finite = np.isfinite(restored(rounded(broken))).all(axis=1)
    np.testing.assert_array_equal(finite, [False] * 2 + [True] * 48)
    quantized = rounded(embeddings)
    assert isinstance(dequantize(Quantized(*map(np.asarray, quantized))), np.ndarray)
    off = np.abs(restored(quantized) - embeddings)
    half_steps = np.abs(embeddings).max(axis=1, keepdims=True) / 254
    assert (off <= half_steps * 1.0001).all()
    assert off.max() > half_steps.min() / 2
