"""Several steps in one call: which of them are joined, and that they are those of as many calls."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import logged_steps, trained_params
from tiny_bert import tiny_recipe

from endx_jax.experiment.compile_step import compile_and_restore
from endx_jax.experiment.run import prepare_run, run
from endx_jax.parallel import to_global
from endx_jax.training.loop import Hook, TrainSettings, calls, fit
from endx_jax.training.step import Stacked

SETTINGS = TrainSettings(steps_per_call=3, checkpoint_every=10, evaluate_every=4, log_every=1)


@pytest.mark.parametrize(
    ("start", "widths", "joined"),
    [
        (0, "8888888888888", [[1, 2, 3], [4], [5, 6, 7], [8], [9], [10], [11], [12], [13]]),
        (5, "8888888", [[6, 7, 8], [9], [10], [11], [12]]),
        (12, "888", [[13, 14, 15]]),
        (12, "88", [[13], [14]]),
        (0, "889999", [[1], [2], [3], [4], [5], [6]]),
        (0, "8999", [[1], [2, 3, 4]]),
        (4, "999888", [[5, 6, 7], [8], [9], [10]]),
    ],
)
def test_a_call_has_all_its_steps_of_one_shape_and_no_pause_but_at_its_end(start, widths, joined):
    batches = ({"x": np.full(int(width), n)} for n, width in enumerate(widths, start + 1))
    found = [[int(batch["x"][0]) for batch in call] for call in calls(batches, start, SETTINGS)]
    assert found == joined
    whole = calls(({"x": np.zeros(8)} for _ in range(4)), 0, TrainSettings())
    assert [len(call) for call in whole] == [1] * 4  # the default


def test_hooks_follow_calls_with_a_step_that_is_due():
    seen = []

    def step(state, batch):
        taken = batch.steps if isinstance(batch, Stacked) else 1
        return state + taken, {"loss": jnp.zeros(taken)}

    class State(int):
        step = property(int)
        __add__ = lambda self, taken: State(int(self) + taken)  # noqa: E731

    def note(name):
        return lambda done, state, metrics: seen.append((name, done, int(state), len(metrics["loss"])))

    batch = {"x": np.zeros(2)}
    batches = [batch, Stacked.of([batch] * 3), Stacked.of([batch] * 2), batch]
    fit(State(4), step, batches, [Hook.every(1, note("each")), Hook.every(4, note("fourth"))])
    each = [("each", 5, 5, 1), ("each", 8, 8, 3), ("each", 10, 10, 2), ("each", 11, 11, 1)]
    assert seen == [*each[:2], ("fourth", 8, 8, 3), *each[2:]]


@pytest.mark.parametrize("encoder", ["none", pytest.param("", marks=pytest.mark.slow)])
def test_the_steps_of_a_call_are_those_of_as_many_calls(tiny_bert, pairs_csv, tmp_path, encoder):
    config = tiny_recipe(tiny_bert, pairs_csv, encoder)
    config.train.steps_per_call = 3
    plan, state, step = compile_and_restore(prepare_run(config, tmp_path).plan)
    assert len(step.programs) == 2
    batches = [plan.stream[0], plan.stream[1], plan.stream[2]]
    assert len({jax.tree.structure(batch) for batch in batches}) == 1
    one_by_one, losses = jax.tree.map(jnp.copy, state), []
    for batch in batches:
        one_by_one, metrics = step(one_by_one, to_global(batch, plan.mesh, 16))
        losses.append(metrics)
    at_once, found = step(state, to_global(Stacked.of(batches), plan.mesh, 16, axis=1))
    chex.assert_trees_all_equal(found, jax.tree.map(lambda *each: np.stack(each), *losses))
    chex.assert_trees_all_equal(at_once, one_by_one)
    assert {str(leaf.sharding) for leaf in jax.tree.leaves(at_once)} == {
        str(leaf.sharding) for leaf in jax.tree.leaves(one_by_one)
    }


def test_a_run_with_several_steps_per_call_is_the_run_with_one_also_when_it_resumes(
    trained_workdir, config, tmp_path, capsys
):
    config.train.update(steps_per_call=2, checkpoint_every=4, stop_at_step=3)
    run(config, tmp_path)
    assert "compiling 2 programs" in capsys.readouterr().out
    assert sorted(int(folder.name) for folder in (tmp_path / "checkpoints").iterdir()) == [3]
    config.train.stop_at_step = 0
    run(config, tmp_path)
    at_once, one_by_one = logged_steps(tmp_path), logged_steps(trained_workdir)
    for name in ("step", "loss", "learning_rate", "gradient_norm"):
        # Of another program: the learning rate of the last step differs in its last bit.
        np.testing.assert_allclose([line[name] for line in at_once], [line[name] for line in one_by_one], rtol=1e-6)
    chex.assert_trees_all_close(trained_params(tmp_path), trained_params(trained_workdir), rtol=1e-6)
