"""Optimizers and schedules, by hand, and Adafactor against optax's."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from refusals import check_refusal

from endx_jax.parallel import MeshSettings, make_mesh, put, state_shardings
from endx_jax.parallel.sharding import parameter_paths
from endx_jax.training.optimizer import OptimizerSettings, joined_norm, make_optimizer, make_schedule

# A matrix, a bias, a norm, a table and a scalar, each with its own value; 6 + 3 + 2 + 8 + 1 = 20 numbers.
LAYER = {"kernel": jnp.full((2, 3), 2.0), "bias": jnp.full(3, 3.0)}
PARAMS = {"encoder": {"mlp_up": LAYER, "norm": {"scale": jnp.full(2, 5.0)}}, "log_temperature": jnp.array(7.0)}
PARAMS |= {"token_embedder": {"embedding": jnp.full((4, 2), 11.0)}}
BESIDE_TABLES = {"embedding_projection": {"bias": jnp.ones(2), "kernel": jnp.ones((2, 2))}}  # the bias does not decay
PLAIN = OptimizerSettings(name="sgd", learning_rate=0.5, schedule="constant", clip_norm=0.0)


def update(settings, params, gradients, steps=10):
    optimizer = make_optimizer(settings, steps, params)
    updates, _ = jax.jit(optimizer.update)(gradients, jax.jit(optimizer.init)(params), params)
    return updates


def test_schedules_rise_and_then_fall_to_zero_unless_constant():
    """Rise: (t + 1) / (3 + 1); then 4 steps from 1 down, reaching 0 at step 7, which is never taken."""
    cosine = [(1 + np.cos(np.pi * n / 4)) / 2 for n in range(5)]
    for name, fall in {"linear": [1.0, 0.75, 0.5, 0.25, 0.0], "cosine": cosine, "constant": [1.0] * 5}.items():
        schedule = make_schedule(OptimizerSettings(learning_rate=1.0, warmup_steps=3, schedule=name), steps=7)
        np.testing.assert_allclose([schedule(t) for t in range(8)], [0.25, 0.5, 0.75, *fall], rtol=1e-6, atol=1e-7)


def test_a_warm_up_that_does_not_fit_and_an_automatic_one_are_a_tenth_of_the_run():
    chosen = {(5, 6): 5, (5, 5): 0, (5, 3): 0, (1000, 60): 6, (-1, 5): 0, (-1, 112): 11, (-1, 3000): 100}
    for (setting, steps), warmup in chosen.items():
        assert OptimizerSettings(warmup_steps=setting).fitted(steps).warmup_steps == warmup


@pytest.mark.parametrize(("clip_norm", "scale"), [(0.0, 1.0), (1.0, 1 / np.sqrt(20))])
def test_sgd_is_the_gradient_times_the_rate_clipped_to_the_global_norm(clip_norm, scale):
    gradients = jax.tree.map(jnp.ones_like, PARAMS)  # 20 entries of one: norm sqrt(20)
    found = update(dataclasses.replace(PLAIN, clip_norm=clip_norm), PARAMS, gradients)
    chex.assert_trees_all_close(found, jax.tree.map(lambda g: -0.5 * scale * g, gradients), rtol=1e-6)


def of_each_parameter(updates) -> list[float]:
    """The one value that all entries of each parameter's update have, by name: bias, kernel, scale, scalar, table."""
    found = parameter_paths(updates)
    return [np.unique(np.round(found[path], 5)).item() for path in sorted(found)]


@pytest.mark.parametrize("weight_decay", [0.2, 0.0])
def test_first_adamw_step_is_the_sign_plus_decay_of_matrices_and_tables_only(weight_decay):
    settings = OptimizerSettings(learning_rate=0.1, schedule="constant", weight_decay=weight_decay, clip_norm=0.0)
    updates = update(settings, PARAMS, jax.tree.map(lambda p: 3.0 * jnp.ones_like(p), PARAMS))
    # m / sqrt(v) is 1 after bias correction; decay adds its share of the parameter.
    beside = of_each_parameter(update(settings, BESIDE_TABLES, jax.tree.map(jnp.zeros_like, BESIDE_TABLES)))
    assert beside == pytest.approx([0, -0.1 * weight_decay])
    expected = [-0.1, -0.1 * (1 + weight_decay * 2), -0.1, -0.1, -0.1 * (1 + weight_decay * 11)]
    assert of_each_parameter(updates) == pytest.approx(expected, rel=1e-4)


def test_first_adafactor_step_is_the_parameters_size_plus_decay_of_matrices_and_tables_only():
    settings = dataclasses.replace(PLAIN, name="adafactor", learning_rate=0.1, weight_decay=0.2)
    updates = update(settings, PARAMS, jax.tree.map(lambda p: 3.0 * jnp.ones_like(p), PARAMS))
    # g / sqrt(v) is 1 at the first step, times the parameters' root mean square; decay adds 0.2 of the parameter.
    expected = [-0.1 * 3, -0.1 * (2 + 0.2 * 2), -0.1 * 5, -0.1 * 7, -0.1 * (11 + 0.2 * 11)]
    assert of_each_parameter(updates) == pytest.approx(expected, rel=1e-4)


def test_multipliers_scale_by_path():
    settings = dataclasses.replace(PLAIN, multipliers=(("^encoder/", 0.1), ("^token_", 10.0), ("^log_", 0.0)))
    updates = update(settings, PARAMS, jax.tree.map(jnp.ones_like, PARAMS))
    assert of_each_parameter(updates) == pytest.approx([-0.05, -0.05, -0.05, 0.0, -5.0])


@pytest.mark.parametrize(
    ("settings", "steps", "named"),
    [
        ({"multipliers": (("^encoder/", 0.1), ("^log_", 1.0))}, 10, ["token_embedder/embedding", "none"]),
        ({"multipliers": ((".*", 1.0), ("bias", 2.0))}, 10, ["mlp_up/bias", "'.*' and 'bias'"]),
        ({"warmup_steps": 5}, 5, ["warmup_steps is 5", "5 steps"]),
    ],
)
def test_a_setting_that_does_not_fit_the_run_or_matches_no_parameter_is_named(settings, steps, named):
    check_refusal(lambda: make_optimizer(dataclasses.replace(PLAIN, **settings), steps, PARAMS), *named)


STEPS = 5
SETTINGS = OptimizerSettings(name="adafactor", learning_rate=0.1, warmup_steps=2, weight_decay=0.0, clip_norm=0.0)
THEIRS = optax.adafactor(make_schedule(SETTINGS, STEPS))
SHAPES = {
    "wide": {"kernel": (128, 160), "bias": (160,)},
    "tall": {"kernel": (160, 128), "bias": (128,)},
    "narrow": {"kernel": (127, 160)},
    "scalar": (),
}


def drawn(shapes, seed, scale=1.0):
    draw = np.random.default_rng(seed)
    leaves, structure = jax.tree.flatten(shapes, is_leaf=lambda x: isinstance(x, tuple))
    return jax.tree.unflatten(structure, [scale * draw.normal(size=s).astype(np.float32) for s in leaves])


def gradients_of(params):
    """One tree a step; they grow, so that updates are clipped."""
    return [drawn(jax.tree.map(np.shape, params), seed=1 + t, scale=0.01 * 3.0**t) for t in range(STEPS)]


def trained(optimizer, params, gradients):
    @jax.jit
    def step(params, state, gradient):
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    state = jax.jit(optimizer.init)(params)
    for gradient in gradients:
        params, state = step(params, state, gradient)
    return params, state


def encoder(depth, seed):
    """Layers of quite different sizes, in the order 0, 1, ..., under the names that BERT's have."""
    shapes = {"mlp_up": {"kernel": (128, 160), "bias": (160,)}, "mlp_norm": {"scale": (128,)}}
    layers = {f"layers_{n}": drawn(shapes, seed + n, scale=0.1 * 4.0**n) for n in range(depth)}
    return layers | {"position_embedding": drawn((140, 128), seed), "type_embedding": drawn((2, 128), seed)}


def test_it_is_optax_adafactor():
    params = drawn(SHAPES, seed=0) | {"zero": np.zeros(7, np.float32)}  # a size below the smallest scale
    gradients = gradients_of(params)
    found, _ = trained(make_optimizer(SETTINGS, STEPS, params), params, gradients)
    chex.assert_trees_all_close(found, trained(THEIRS, params, gradients)[0], rtol=1e-5, atol=1e-7)


def test_frozen_leaves_are_absent():
    def freeze(params):
        return jax.tree_util.tree_map_with_path(lambda path, leaf: None if "question" in str(path) else leaf, params)

    sides = {"question": {"encoder": encoder(1, 10)}, "answer": {"encoder": encoder(2, 20)}}
    params = {"dual_encoder": sides, "log_temperature": np.float32(0.5)}
    gradients = gradients_of(params)
    whole, _ = trained(make_optimizer(SETTINGS, STEPS, params), params, gradients)
    part = freeze(params)
    optimizer = make_optimizer(SETTINGS, STEPS, part)
    assert not [path for path in parameter_paths(optimizer.init(part)) if "question" in path]
    chex.assert_trees_all_equal(trained(optimizer, part, [freeze(g) for g in gradients])[0], freeze(whole))


def test_a_sharded_update_is_the_whole_one():
    params = {"encoder": encoder(1, 0), "token_embedder": {"embedding": drawn((300, 128), 1)}}
    gradients = drawn(jax.tree.map(np.shape, params), seed=1)
    optimizer = make_optimizer(SETTINGS, STEPS, params)

    @jax.jit
    def step(params, gradients):
        return optimizer.update(gradients, optimizer.init(params), params)

    mesh = make_mesh(MeshSettings(fsdp=2, tensor=2))
    at = state_shardings(jax.eval_shape(step, params, gradients), mesh)
    split = [put(tree, at[0]) for tree in (params, gradients)]
    updates, state = jax.jit(step, out_shardings=at)(*split)
    chex.assert_trees_all_close((updates, state), step(params, gradients), rtol=1e-5, atol=1e-8)
    parts = {path: leaf.sharding.shard_shape(leaf.shape) for path, leaf in parameter_paths(state).items()}
    kernel = [parts[f"0/{v}/encoder/layers_0/mlp_up/kernel"] for v in ("v_row", "v_col", "v")]
    assert kernel == [(128,), (160,), (1,)]
    assert parts["0/v/encoder/layers_0/mlp_up/bias"] == (160 // 2,)
    assert parts["0/v/encoder/type_embedding"] == (2, 128 // 2)


# The norm of joined gradients, and the clipping by it, against optax's of single parameters.
JOINED = {
    "encoder": {"mlp_up": {"kernel": (128, 160), "bias": (160,)}, "norm": {"scale": (128,)}},
    "token_embedder": {"embedding": (7, 5)},
    "log_temperature": (),
}
OF_JOINED = OptimizerSettings(
    learning_rate=0.1, warmup_steps=2, weight_decay=0.2, multipliers=(("^encoder/", 0.1), ("^(token|log)_", 10.0))
)


def test_the_norm_of_joined_gradients_is_that_of_all_entries():
    tree = drawn(JOINED, 0) | {"frozen": None}
    entries = np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(tree)]).astype(np.float64)
    np.testing.assert_allclose(joined_norm(tree), np.sqrt(np.sum(entries**2)), rtol=1e-6)
    np.testing.assert_allclose(joined_norm(tree), optax.tree.norm(tree), rtol=1e-6)


@pytest.mark.parametrize("scale", [1e-4, 1.0])  # of gradients of which none or all are clipped
@pytest.mark.parametrize("name", ["adamw", "sgd", "adafactor"])
def test_updates_and_states_are_those_by_the_norm_of_single_parameters(name, scale):
    settings = dataclasses.replace(OF_JOINED, name=name)
    given = drawn(JOINED, 0), [drawn(JOINED, 1 + step, scale) for step in range(STEPS)]
    joined = trained(make_optimizer(settings, STEPS, given[0], joined=True), *given)
    apart = trained(make_optimizer(settings, STEPS, given[0]), *given)
    # Of one structure, so that a run resumes on other devices, and from checkpoints of earlier versions.
    assert jax.tree.structure(joined) == jax.tree.structure(apart)
    chex.assert_trees_all_close(joined, apart, rtol=1e-5, atol=1e-7)
    without = trained(make_optimizer(dataclasses.replace(settings, clip_norm=0.0), STEPS, given[0]), *given)
    same = all(np.allclose(a, b, rtol=1e-5) for a, b in zip(*map(jax.tree.leaves, (joined, without)), strict=True))
    assert same == (scale < 1)  # the control


def test_a_gradient_that_is_not_finite_stays_so():
    params, settings = drawn(JOINED, 0), dataclasses.replace(OF_JOINED, name="sgd")
    gradients = drawn(JOINED, 1) | {"log_temperature": jnp.float32(np.inf)}
    optimizer = make_optimizer(settings, STEPS, params, joined=True)
    updates, _ = optimizer.update(gradients, optimizer.init(params), params)
    assert not np.isfinite(updates["log_temperature"])
