"""Norms against their formulas, gradients included, and the arrays that they keep."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from endx_jax.models.layers import ACTIVATIONS, Norm, activated

EPSILON = 1e-3


def layer_norm(x, scale, bias):
    x = x.astype(jnp.float32)
    return rms_norm(x - x.mean(-1, keepdims=True), scale) + bias[None, None]


def rms_norm(x, scale):
    x = x.astype(jnp.float32)
    return x / jnp.sqrt(jnp.square(x).mean(-1, keepdims=True) + EPSILON) * scale[None, None]


CASES = {"layer": (layer_norm, Norm(EPSILON, jnp.dtype(jnp.float32)))}
CASES["rms"] = rms_norm, Norm(EPSILON, jnp.dtype(jnp.float32), use_bias=False, centred=False)


def drawn(dtype):
    draw = np.random.default_rng(0)
    x, gradient, scale, bias = (draw.normal(size=size).astype(np.float32) for size in ((2, 5, 12), (2, 5, 12), 12, 12))
    return (3 + 2 * x).astype(dtype), {"scale": 1 + scale, "bias": 1 + bias}, gradient


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("dtype", "error"), [(jnp.float32, 1e-5), (jnp.bfloat16, 2**-7)])
def test_norms_and_their_gradients_are_those_of_the_formula(name, dtype, error):
    formula, norm = CASES[name]
    x, params, gradient = drawn(dtype)
    params = {key: params[key] for key in (("scale", "bias") if norm.use_bias else ("scale",))}

    @functools.partial(jax.jit, static_argnums=0)
    def differentiate(function, x):
        value, pull = jax.vjp(function, x, params)
        return value, pull(gradient)

    expected, exact = differentiate(lambda x, params: formula(x, **params), x.astype(np.float32))
    found, own = differentiate(lambda x, params: norm.apply({"params": params}, x), x)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert own[0].dtype == dtype
    jax.tree.map(lambda a, b: np.testing.assert_allclose(np.float32(a), b, atol=error * np.abs(b).max()), own, exact)


@pytest.mark.parametrize("name", CASES)
def test_a_norm_keeps_its_input_and_two_numbers_of_each_row(name):
    _, norm = CASES[name]
    x, params, _ = drawn(jnp.bfloat16)
    apply = functools.partial(norm.apply, {"params": params})
    kept = jax.tree.leaves(jax.eval_shape(lambda x: jax.vjp(apply, x)[1], x))
    assert sum(leaf.size for leaf in kept if leaf.dtype == jnp.float32) <= 2 * 2 * 5 + 2 * 12
    assert sum(leaf.size for leaf in kept if leaf.dtype == jnp.bfloat16) == x.size


@pytest.mark.parametrize("name", ["gelu", "gelu_new", "silu"])
def test_gated_units_are_products_and_keep_two_arrays(name):
    activation, (up, gate) = ACTIVATIONS[name], np.random.default_rng(1).normal(size=(2, 4, 6)).astype(np.float32)

    @jax.jit
    def compute(up, gate):
        return *jax.vjp(functools.partial(activated, activation), up, gate), activation(gate) * up

    found, pull, expected = compute(up, gate)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert sum(leaf.size for leaf in jax.tree.leaves(pull)) == 2 * gate.size
