import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from endx_jax.errors import EndxError
from endx_jax.parallel.sharding import parameter_paths
from endx_jax.training.optimizer import OptimizerSettings, make_optimizer, make_schedule

# A matrix, a bias, a norm, a table and a scalar, each with its own value; 6 + 3 + 2 + 8 + 1 = 20 numbers.
PARAMS = {
    "encoder": {
        "mlp_up": {"kernel": jnp.full((2, 3), 2.0), "bias": jnp.full(3, 3.0)},
        "norm": {"scale": jnp.full(2, 5.0)},
    },
    "log_temperature": jnp.array(7.0),
    "token_embedder": {"embedding": jnp.full((4, 2), 11.0)},
}
PLAIN = OptimizerSettings(name="sgd", learning_rate=0.5, schedule="constant", clip_norm=0.0)


def update(settings, params, gradients, steps=10):
    optimizer = make_optimizer(settings, steps, params)
    updates, _ = jax.jit(optimizer.update)(gradients, jax.jit(optimizer.init)(params), params)
    return updates


@pytest.mark.parametrize(
    ("name", "fall"),
    [
        ("linear", [1.0, 0.75, 0.5, 0.25, 0.0]),
        ("cosine", [(1 + np.cos(np.pi * n / 4)) / 2 for n in range(5)]),
        ("constant", [1.0] * 5),
    ],
)
def test_schedules_rise_and_then_fall_to_zero_unless_constant(name, fall):
    schedule = make_schedule(OptimizerSettings(learning_rate=1.0, warmup_steps=3, schedule=name), steps=7)
    # Rise: (t + 1) / (3 + 1); then 4 steps from 1 down, reaching 0 at step 7, which is never taken.
    np.testing.assert_allclose([schedule(t) for t in range(8)], [0.25, 0.5, 0.75, *fall], rtol=1e-6, atol=1e-7)


def test_warm_up_must_leave_something_of_the_run():
    with pytest.raises(EndxError, match="warmup_steps is 5, but the run has 5 steps"):
        make_schedule(OptimizerSettings(warmup_steps=5), steps=5)


@pytest.mark.parametrize(
    ("setting", "steps", "warmup"),
    [(5, 6, 5), (5, 5, 0), (5, 3, 0), (1000, 60, 6), (-1, 5, 0), (-1, 112, 11), (-1, 3000, 100)],
)
def test_a_warm_up_that_does_not_fit_and_an_automatic_one_are_a_tenth_of_the_run(setting, steps, warmup):
    assert OptimizerSettings(warmup_steps=setting).fitted(steps).warmup_steps == warmup


@pytest.mark.parametrize(("clip_norm", "scale"), [(0.0, 1.0), (1.0, 1 / np.sqrt(20))])
def test_sgd_is_the_gradient_times_the_rate_clipped_to_the_global_norm(clip_norm, scale):
    gradients = jax.tree.map(jnp.ones_like, PARAMS)  # 20 entries of one: norm sqrt(20)
    found = update(dataclasses.replace(PLAIN, clip_norm=clip_norm), PARAMS, gradients)
    chex.assert_trees_all_close(found, jax.tree.map(lambda g: -0.5 * scale * g, gradients), rtol=1e-6)


def of_each_parameter(updates) -> dict[str, float]:
    """The one value that all entries of each parameter's update have."""
    found = {path: np.unique(np.round(leaf, 5)) for path, leaf in parameter_paths(updates).items()}
    return {path: values.item() for path, values in found.items()}


@pytest.mark.parametrize("weight_decay", [0.2, 0.0])
def test_first_adamw_step_is_the_sign_plus_decay_of_matrices_and_tables_only(weight_decay):
    settings = OptimizerSettings(learning_rate=0.1, schedule="constant", weight_decay=weight_decay, clip_norm=0.0)
    updates = update(settings, PARAMS, jax.tree.map(lambda p: 3.0 * jnp.ones_like(p), PARAMS))
    # m / sqrt(v) is 1 after bias correction; decay adds its share of the parameter.
    assert of_each_parameter(updates) == pytest.approx(
        {
            "encoder/mlp_up/bias": -0.1,
            "encoder/mlp_up/kernel": -0.1 * (1 + weight_decay * 2),
            "encoder/norm/scale": -0.1,
            "log_temperature": -0.1,
            "token_embedder/embedding": -0.1 * (1 + weight_decay * 11),
        },
        rel=1e-4,
    )


def test_first_adafactor_step_is_the_parameters_size_plus_decay_of_matrices_and_tables_only():
    settings = dataclasses.replace(PLAIN, name="adafactor", learning_rate=0.1, weight_decay=0.2)
    updates = update(settings, PARAMS, jax.tree.map(lambda p: 3.0 * jnp.ones_like(p), PARAMS))
    # g / sqrt(v) is 1 at the first step, times the parameters' root mean square; decay adds 0.2 of the parameter.
    assert of_each_parameter(updates) == pytest.approx(
        {
            "encoder/mlp_up/bias": -0.1 * 3,
            "encoder/mlp_up/kernel": -0.1 * (2 + 0.2 * 2),
            "encoder/norm/scale": -0.1 * 5,
            "log_temperature": -0.1 * 7,
            "token_embedder/embedding": -0.1 * (11 + 0.2 * 11),
        },
        rel=1e-4,
    )


def test_biases_beside_tables_do_not_decay():
    params = {"embedding_projection": {"bias": jnp.ones(2), "kernel": jnp.ones((2, 2))}}
    settings = dataclasses.replace(PLAIN, name="adamw", weight_decay=0.1)
    updates = of_each_parameter(update(settings, params, jax.tree.map(jnp.zeros_like, params)))
    assert updates == pytest.approx({"embedding_projection/bias": 0, "embedding_projection/kernel": -0.05})


def test_multipliers_scale_by_path():
    settings = dataclasses.replace(PLAIN, multipliers=(("^encoder/", 0.1), ("^token_", 10.0), ("^log_", 0.0)))
    updates = update(settings, PARAMS, jax.tree.map(jnp.ones_like, PARAMS))
    assert of_each_parameter(updates) == pytest.approx(
        {
            "encoder/mlp_up/bias": -0.5 * 0.1,
            "encoder/mlp_up/kernel": -0.5 * 0.1,
            "encoder/norm/scale": -0.5 * 0.1,
            "log_temperature": 0.0,
            "token_embedder/embedding": -0.5 * 10,
        }
    )


@pytest.mark.parametrize(
    ("multipliers", "message"),
    [
        ((("^encoder/", 0.1), ("^log_", 1.0)), "token_embedder/embedding matches none"),
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
        ({"schedule": "step"}, "linear, cosine, constant"),
        ({"learning_rate": -1.0}, "must not be negative"),
        ({"warmup_steps": -2}, "must be -1 or more"),
    ],
)
def test_settings_out_of_bounds_are_refused(values, message):
    with pytest.raises(EndxError, match=message):
        OptimizerSettings(**values)
