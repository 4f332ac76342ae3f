import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from endx_jax.errors import EndxError
from endx_jax.training.optimizer import OptimizerSettings, make_optimizer, make_schedule, parameter_paths

PARAMS = {
    "encoder": {"mlp_up": {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}},
    "projection": {"kernel": jnp.ones((2, 1))},
}
PLAIN = OptimizerSettings(name="sgd", learning_rate=0.5, schedule="constant", clip_norm=0.0)


def update(settings, params, gradients, steps=10):
    optimizer = make_optimizer(settings, steps, params)
    updates, _ = optimizer.update(gradients, optimizer.init(params), params)
    return updates


def test_linear_schedule_rises_then_falls_to_zero():
    schedule = make_schedule(OptimizerSettings(learning_rate=1.0, warmup_steps=3), steps=7)
    # Rise: (t + 1) / (3 + 1); then 4 steps from 1 down, reaching 0 at step 7, which is never taken.
    expected = [0.25, 0.5, 0.75, 1.0, 0.75, 0.5, 0.25, 0.0]
    np.testing.assert_allclose([schedule(t) for t in range(8)], expected, rtol=1e-6)


def test_constant_schedule_stays():
    schedule = make_schedule(OptimizerSettings(learning_rate=0.3, schedule="constant"), steps=5)
    np.testing.assert_allclose([schedule(0), schedule(4)], 0.3, rtol=1e-6)


def test_warm_up_must_leave_something_of_the_run():
    with pytest.raises(EndxError, match="warmup_steps, 5, leaves nothing of a run of 5 steps"):
        make_schedule(OptimizerSettings(warmup_steps=5), steps=5)


def test_sgd_is_the_gradient_times_the_rate():
    gradients = jax.tree.map(jnp.ones_like, PARAMS)
    chex.assert_trees_all_close(update(PLAIN, PARAMS, gradients), jax.tree.map(lambda g: -0.5 * g, gradients))


def test_clipping_scales_to_the_global_norm():
    gradients = jax.tree.map(jnp.ones_like, PARAMS)  # 4 + 2 + 2 entries of one: norm sqrt(8)
    clipped = update(dataclasses.replace(PLAIN, clip_norm=1.0), PARAMS, gradients)
    chex.assert_trees_all_close(clipped, jax.tree.map(lambda g: -0.5 * g / np.sqrt(8), gradients), rtol=1e-6)


def test_first_adamw_step_is_the_sign_plus_decay_of_matrices_only():
    settings = OptimizerSettings(learning_rate=0.1, schedule="constant", weight_decay=0.2, clip_norm=0.0)
    gradients = jax.tree.map(lambda p: 3.0 * jnp.ones_like(p), PARAMS)
    updates = update(settings, PARAMS, gradients)
    # m / sqrt(v) is 1 after bias correction; decay adds 0.2 of the parameter, which is 1.
    np.testing.assert_allclose(updates["encoder"]["mlp_up"]["kernel"], -0.1 * (1 + 0.2), rtol=1e-5)
    np.testing.assert_allclose(updates["encoder"]["mlp_up"]["bias"], -0.1, rtol=1e-5)


def test_first_adafactor_step_is_the_parameters_size_plus_decay_of_matrices_only():
    settings = OptimizerSettings(
        name="adafactor", learning_rate=0.1, schedule="constant", weight_decay=0.2, clip_norm=0.0
    )
    params = jax.tree.map(lambda p: 2.0 * p, PARAMS)
    updates = update(settings, params, jax.tree.map(lambda p: 3.0 * jnp.ones_like(p), PARAMS))
    # g / sqrt(v) is 1 at the first step, the parameters' root mean square is 2; decay adds 0.2 of the parameter.
    np.testing.assert_allclose(updates["encoder"]["mlp_up"]["kernel"], -0.1 * (2 + 0.2 * 2), rtol=1e-5)
    np.testing.assert_allclose(updates["encoder"]["mlp_up"]["bias"], -0.1 * 2, rtol=1e-5)


def test_momentum_accumulates():
    optimizer = make_optimizer(dataclasses.replace(PLAIN, momentum=0.5), 10, PARAMS)
    gradients, state = jax.tree.map(jnp.ones_like, PARAMS), optimizer.init(PARAMS)
    _, state = optimizer.update(gradients, state, PARAMS)
    updates, _ = optimizer.update(gradients, state, PARAMS)
    np.testing.assert_allclose(updates["projection"]["kernel"], -0.5 * 1.5, rtol=1e-6)


def test_multipliers_scale_by_path():
    settings = dataclasses.replace(PLAIN, multipliers=(("^encoder/", 0.1), ("^projection/", 10.0)))
    updates = update(settings, PARAMS, jax.tree.map(jnp.ones_like, PARAMS))
    np.testing.assert_allclose(updates["encoder"]["mlp_up"]["bias"], -0.05, rtol=1e-6)
    np.testing.assert_allclose(updates["projection"]["kernel"], -5.0, rtol=1e-6)


@pytest.mark.parametrize(
    ("multipliers", "message"),
    [
        ((("^encoder/", 0.1),), "projection/kernel matches none"),
        (((".*", 1.0), ("bias", 2.0)), "mlp_up/bias matches '.*' and 'bias'"),
    ],
)
def test_every_parameter_matches_exactly_one_multiplier(multipliers, message):
    with pytest.raises(EndxError, match=message.replace("*", r"\*")):
        make_optimizer(dataclasses.replace(PLAIN, multipliers=multipliers), 10, PARAMS)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": "adamm"}, "did you mean 'adamw'"),
        ({"schedule": "cosine"}, "linear, constant"),
        ({"learning_rate": -1.0}, "must not be negative"),
        ({"warmup_steps": -1}, "must not be negative"),
    ],
)
def test_settings_out_of_bounds_are_refused(values, message):
    with pytest.raises(EndxError, match=message):
        OptimizerSettings(**values)


def test_paths_are_joined_by_slashes():
    assert list(parameter_paths(PARAMS)) == ["encoder/mlp_up/bias", "encoder/mlp_up/kernel", "projection/kernel"]
