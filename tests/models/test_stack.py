"""What layers keep for the backward pass, by the name of the policy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import TINY, padded, random_params, texts, tower
from jaxprs import equations
from pretended import pretended

from endx_jax.models.stack import REMATS, _cast_together
from endx_jax.parallel.memory import bytes_kept

TOKENS = padded(texts((9, 16)), 16)


def kept(remat: str, scan_layers: bool) -> int:
    """Bytes that the forward pass of one text leaves."""
    model = tower(remat=remat, scan_layers=scan_layers)
    params = random_params(model, TOKENS)
    return bytes_kept(lambda params, rows: model.apply({"params": params}, rows), params, TOKENS)


@pytest.mark.parametrize("scan_layers", [False, True])
def test_each_policy_keeps_less_than_the_one_before(scan_layers):
    most_to_least = [kept(remat, scan_layers) for remat in ("none", "all_dots", "dots", "full")]
    assert list(REMATS) == ["none", "all_dots", "dots", "full"]
    assert most_to_least == sorted(set(most_to_least), reverse=True)


def test_kernels_are_cast_together_for_training_on_a_gpu_alone():
    model = tower(dataclasses.replace(TINY, layers=1), dtype=jnp.bfloat16)
    params = jax.eval_shape(lambda: random_params(model, TOKENS))

    def multiplied(platform: str, keys: jax.Array | None) -> int:
        """Kernels that are multiplied by one before they are cast."""
        with jax.sharding.use_abstract_mesh(pretended(platform)):
            traced = jax.make_jaxpr(lambda params: model.apply({"params": params}, TOKENS, keys))(params)
        products = [one for one in equations(traced) if one.primitive.name == "mul"]
        return sum(one.outvars[0].aval.shape in ((16, 16), (16, 24), (24, 16)) for one in products)

    keys = jax.random.split(jax.random.key(0), len(TOKENS.ids))
    assert [multiplied(name, keys) for name in ("gpu", "tpu", "cpu")] == [6, 0, 0]
    assert multiplied("gpu", None) == 0


def test_kernels_that_are_cast_together_are_rounded_as_elsewhere():
    kernel = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    cast = jax.jit(lambda params: _cast_together(params, jnp.bfloat16))({"kernel": kernel, "bias": kernel[0]})
    np.testing.assert_array_equal(cast["kernel"], kernel.astype(jnp.bfloat16))
    np.testing.assert_array_equal(cast["bias"], kernel[0])


@pytest.mark.parametrize(
    ("platform", "layers", "scanned"),
    [("tpu", 5, False), ("tpu", 6, True), ("cpu", 12, False), ("cpu", 24, True), ("gpu", 12, False)],
)
def test_deep_towers_are_scanned_by_platform(platform, layers, scanned):
    model = tower(dataclasses.replace(TINY, layers=layers), scan_layers=None)
    params = jax.eval_shape(lambda: random_params(model, TOKENS))
    with jax.sharding.use_abstract_mesh(pretended(platform)):
        traced = jax.make_jaxpr(lambda params: model.apply({"params": params}, TOKENS))(params)
    loops = [equation for equation in equations(traced) if equation.primitive.name == "scan"]
    assert bool(loops) is scanned
    assert f"layers_{layers - 1}" in params["encoder"]
