import chex
import jax
import numpy as np
import optax
import pytest
from helpers import one_line_error

from endx_jax.batch import Batch, Tokens
from endx_jax.training.step import TrainState, make_train_step, merge_frozen, split_frozen

PARAMS = {"a": {"kernel": np.ones(2), "bias": np.full(2, 2.0)}, "b": {"kernel": np.full(2, 3.0)}}


def test_parts_have_the_leaves_of_their_paths_and_merge_to_the_whole():
    trained, frozen = split_frozen(PARAMS, ["^a/k", "b/"])
    assert trained == {"a": {"kernel": None, "bias": PARAMS["a"]["bias"]}, "b": {"kernel": None}}
    assert frozen == {"a": {"kernel": PARAMS["a"]["kernel"], "bias": None}, "b": {"kernel": PARAMS["b"]["kernel"]}}
    chex.assert_trees_all_equal(merge_frozen(trained, frozen), PARAMS)
    trained, frozen = split_frozen(PARAMS, [])
    chex.assert_trees_all_equal(trained, PARAMS)
    assert jax.tree.leaves(frozen) == []


def test_patterns_that_name_nothing_or_everything_are_refused():
    with one_line_error("optimizer.frozen has the pattern 'token_embeder', which matches no parameter's path"):
        split_frozen(PARAMS, ["a/", "token_embeder"])
    with one_line_error("optimizer.frozen matches every parameter"):
        split_frozen(PARAMS, ["a/", "b/"])


@pytest.mark.parametrize("frozen", [(), ("^b/",)])
def test_frozen_parameters_have_no_state_no_part_in_the_clipping_norm_and_stay_as_they_are(frozen):
    def objective(params, batch, rng, step):
        # Gradients: 3 for each of the two entries of a/kernel, 0 for a/bias, 4 for each of b/kernel.
        return 3 * params["a"]["kernel"].sum() + 4 * params["b"]["kernel"].sum(), {}

    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.trace(0.5), optax.scale_by_learning_rate(1.0))
    params = jax.tree.map(np.float32, PARAMS)
    state = TrainState.create(params, optimizer, frozen)
    assert len(jax.tree.leaves(state.opt_state)) == 3 - len(frozen)
    step = make_train_step(objective, optimizer, lambda _: 1.0, seed=0, shardings=None, frozen=frozen)
    none = Tokens(ids=np.zeros((1, 1), np.int32), mask=np.ones((1, 1), bool))
    ids = np.zeros(1, np.int32)
    new, metrics = step(state, Batch(none, none, ids, ids, ids[:, None]))
    norm = np.sqrt(2 * 9 + 2 * 16) if not frozen else np.sqrt(2 * 9)
    np.testing.assert_allclose(metrics["gradient_norm"], norm, rtol=1e-6)
    np.testing.assert_allclose(new.params["a"]["kernel"], 1 - 3 / norm, rtol=1e-6)
    np.testing.assert_array_equal(new.params["b"]["kernel"], np.float32(3 if frozen else 3 - 4 / norm))
