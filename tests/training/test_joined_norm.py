"""The norm of joined gradients, and the clipping by it, against optax's of single parameters."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from endx_jax.training.optimizer import OptimizerSettings, joined_norm, make_optimizer

STEPS = 4
SETTINGS = OptimizerSettings(
    learning_rate=0.1, warmup_steps=2, weight_decay=0.2, multipliers=(("^encoder/", 0.1), ("^(token|log)_", 10.0))
)
SHAPES = {
    "encoder": {"mlp_up": {"kernel": (128, 160), "bias": (160,)}, "norm": {"scale": (128,)}},
    "token_embedder": {"embedding": (7, 5)},
    "log_temperature": (),
}


def drawn(seed: int, scale: float = 1.0):
    draw = np.random.default_rng(seed)
    return jax.tree.map(
        lambda shape: (scale * draw.normal(size=shape)).astype(np.float32), SHAPES, is_leaf=lambda x: type(x) is tuple
    )


def test_it_is_the_norm_of_all_entries():
    tree = drawn(0) | {"frozen": None}
    entries = np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(tree)]).astype(np.float64)
    np.testing.assert_allclose(joined_norm(tree), np.sqrt(np.sum(entries**2)), rtol=1e-6)
    np.testing.assert_allclose(joined_norm(tree), optax.tree.norm(tree), rtol=1e-6)


def trained(optimizer, scale: float):
    params = drawn(0)
    state = optimizer.init(params)
    for step in range(STEPS):
        updates, state = jax.jit(optimizer.update)(drawn(1 + step, scale), state, params)
        params = optax.apply_updates(params, updates)
    return params, state


@pytest.mark.parametrize("scale", [1e-4, 1.0])  # of gradients of which none or all are clipped
@pytest.mark.parametrize("name", ["adamw", "sgd", "adafactor"])
def test_updates_and_states_are_those_by_the_norm_of_single_parameters(name, scale):
    settings = dataclasses.replace(SETTINGS, name=name)
    params = drawn(0)
    joined = trained(make_optimizer(settings, STEPS, params, joined=True), scale)
    apart = trained(make_optimizer(settings, STEPS, params), scale)
    # Of one structure, so that a run resumes on other devices, and from checkpoints of earlier versions.
    assert jax.tree.structure(joined) == jax.tree.structure(apart)
    chex.assert_trees_all_close(joined, apart, rtol=1e-5, atol=1e-7)
    without = trained(make_optimizer(dataclasses.replace(settings, clip_norm=0.0), STEPS, params), scale)
    same = all(np.allclose(a, b, rtol=1e-5) for a, b in zip(*map(jax.tree.leaves, (joined, without)), strict=True))
    assert same == (scale < 1)  # the control


def test_a_gradient_that_is_not_finite_stays_so():
    optimizer = make_optimizer(dataclasses.replace(SETTINGS, name="sgd"), STEPS, drawn(0), joined=True)
    gradients = drawn(1) | {"log_temperature": jnp.float32(np.inf)}
    updates, _ = optimizer.update(gradients, optimizer.init(drawn(0)), drawn(0))
    assert not np.isfinite(updates["log_temperature"])
