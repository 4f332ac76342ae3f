"""Norms against their formulas, gradients included, and the arrays that they keep."""

import functools

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import T5_SHAPE, padded, random_params, texts, tower
from jaxprs import equations
from pretended import pretended

from endx_jax.models.layers import Norm, _joint_sums

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


def test_joint_sums_are_the_sums():
    arrays = [np.random.default_rng(n).normal(size=(3, 5, 4)).astype(np.float32) for n in range(2)]
    for found, array in zip(_joint_sums(arrays, (0, 1)), arrays, strict=True):
        np.testing.assert_allclose(found, array.sum((0, 1)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("platform", "joint"), [("cpu", False), ("tpu", False), ("gpu", True)])
def test_a_norm_sums_for_scale_and_bias_in_one_pass_on_a_gpu(platform, joint):
    norm = CASES["layer"][1]
    x, params, gradient = drawn(jnp.float32)

    with jax.sharding.use_abstract_mesh(pretended(platform)):
        _, pull = jax.vjp(lambda params: norm.apply({"params": params}, x), params)
    sums = [one for one in equations(jax.make_jaxpr(pull)(gradient)) if one.primitive.name == "reduce"]
    assert len(sums) == joint


@pytest.mark.parametrize(
    ("platform", "arrays", "module", "name"), [("cpu", 3, jax, "checkpoint"), ("gpu", 2, nn, "remat")]
)
def test_a_gated_mlp_keeps_few_arrays_of_its_width_with_the_same_gradient(platform, arrays, module, name):
    tokens, model = padded(texts((9, 16)), 16), tower(T5_SHAPE)
    params, keys = random_params(model, tokens), jax.random.split(jax.random.key(0), 2)

    def embedded(params):
        with jax.sharding.use_abstract_mesh(pretended(platform)):
            return model.apply({"params": params}, tokens, keys)

    def kept():
        leaves = jax.tree.leaves(jax.eval_shape(lambda: jax.vjp(embedded, params)[1]))
        return sum(leaf.shape == (*tokens.ids.shape, T5_SHAPE.mlp_width) for leaf in leaves)

    def differentiate():
        return jax.jit(jax.grad(lambda params: jnp.sum(embedded(params) ** 3)))(params)

    found, least = differentiate(), kept()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, lambda function: function)
        chex.assert_trees_all_close(found, differentiate(), rtol=1e-4, atol=1e-6)
        assert least == arrays < kept()
