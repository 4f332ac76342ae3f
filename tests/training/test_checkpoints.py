import contextlib
import errno
import logging
import os
import re
import shutil
import sys
import textwrap
import time
import types

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from helpers import flip_a_bit, largest_file, raising, wait_for
from refusals import check_refusal
from several_processes import start_program

from endx_jax.errors import RunInterrupted
from endx_jax.parallel import MeshSettings, make_mesh, state_shardings
from endx_jax.training import checkpoints as module
from endx_jax.training import hooks, loop
from endx_jax.training.checkpoints import FOLDER, HASHES, Checkpoints, best_step, newest_step, restore_params
from endx_jax.training.step import TrainState


def make_state(step, value=1.0):
    params = {"projection": {"kernel": jnp.full((8, 4), value)}}
    state = TrainState.create(params, optax.scale_by_adam())
    return state.replace(step=jnp.asarray(step, jnp.int32))


def open_checkpoints(workdir, keep=2, report=lambda line: None, **options):
    return contextlib.closing(Checkpoints(workdir, keep=keep, metric="mrr", report=report, **options))


def save(workdir, steps, keep=2):
    """Saves checkpoints of steps, each with its MRR; parameters are as large as the step."""
    with open_checkpoints(workdir, keep) as checkpoints:
        for step, mrr in steps.items():
            checkpoints.save(step, make_state(step, float(step)), None if mrr is None else {"mrr": mrr})
    return workdir


def latest(workdir):
    """The step that training resumes at, and what it says about checkpoints."""
    lines = []
    with open_checkpoints(workdir, report=lines.append) as checkpoints:
        return checkpoints.latest_step, lines


def like(state, **mesh):
    return module.abstract(state, state_shardings(state, make_mesh(MeshSettings(**mesh))))


def names(folder):
    return sorted(file.name for file in folder.iterdir())


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """A workdir with checkpoints of steps 1, 2 and 3, which tests leave as it is."""
    return save(tmp_path_factory.mktemp("three"), dict.fromkeys((1, 2, 3)), keep=3)


@pytest.fixture
def three_checkpoints(three, tmp_path):
    return shutil.copytree(three, tmp_path / "three")


def test_a_state_comes_back_bit_for_bit_on_another_topology(tmp_path, monkeypatch):
    handler = ocp.type_handlers.get_type_handler(jax.Array)
    monkeypatch.setattr(handler, "_use_replica_parallel", True)  # as it is but for tests
    state = make_state(5)
    kernel = jax.random.normal(jax.random.key(0), (8, 4))
    state = state.replace(params={"projection": {"kernel": kernel}})
    with open_checkpoints(tmp_path) as checkpoints:
        checkpoints.save(5, state)
        checkpoints.wait()
        restored = checkpoints.restore(5, like(state, data=2, fsdp=4))
    chex.assert_trees_all_equal(restored, state)
    assert restored.params["projection"]["kernel"].addressable_shards[0].data.shape == (2, 4)


def cut(workdir):
    file = largest_file(workdir, 3)
    os.truncate(file, file.stat().st_size // 2)


def with_hashes(text):
    return lambda workdir: (workdir / FOLDER / "3" / HASHES).write_text(text)


DAMAGES = {
    "a flipped bit": lambda workdir: flip_a_bit(workdir, 3),
    "a missing file": lambda workdir: largest_file(workdir, 3).unlink(),
    "a file cut short": cut,
    "no hashes": lambda workdir: (workdir / FOLDER / "3" / HASHES).unlink(),
    "an empty file of hashes": with_hashes(""),
    "other contents of it": with_hashes('{"step": 3, "metrics": null}'),  # tests/experiment fuzzes others
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_refused_and_the_one_before_is_used(three_checkpoints, damage):
    DAMAGES[damage](three_checkpoints)
    assert best_step(three_checkpoints, "mrr") == (3 if damage == "a flipped bit" else 2)  # contents are not read
    lines = []
    with open_checkpoints(three_checkpoints, report=lines.append) as checkpoints:
        assert checkpoints.latest_step == 2
        restored = checkpoints.restore(2, like(make_state(0)))
        assert float(restored.params["projection"]["kernel"][0, 0]) == 2.0
        assert re.fullmatch(r"checkpoint 3 can't be used: \S+ is missing or has changed; it is removed", *lines)
        checkpoints.save(3, make_state(3))  # the place is free again


def test_without_a_whole_checkpoint_training_begins_anew(three_checkpoints):
    for step in (1, 2, 3):
        flip_a_bit(three_checkpoints, step)
    assert latest(three_checkpoints)[0] is None


def test_a_damaged_best_is_found_when_training_goes_on(tmp_path):
    save(tmp_path, {1: 0.9, 2: 0.5, 3: 0.4}, keep=3)
    flip_a_bit(tmp_path, 1)
    step, lines = latest(tmp_path)
    assert (step, best_step(tmp_path, "mrr"), len(lines)) == (3, 2, 1)
    assert lines[0].startswith("checkpoint 1 can't be used: ")


def test_incomplete_checkpoints_are_removed(three_checkpoints):
    shutil.rmtree(three_checkpoints / FOLDER / "1" / "metrics")  # as by a kill during its removal
    (three_checkpoints / FOLDER / "4.orbax-checkpoint-tmp").mkdir()
    os.remove(three_checkpoints / FOLDER / "1" / HASHES)
    step, lines = latest(three_checkpoints)
    assert (step, len(lines)) == (3, 1)
    wait_for(lambda: names(three_checkpoints / FOLDER) == ["2", "3"])  # Orbax removes its own folders a little later


def test_checkpoints_of_an_earlier_version_are_left_alone(three_checkpoints):
    (three_checkpoints / "checkpoint_manifests").mkdir()
    (three_checkpoints / "checkpoint_manifests" / "3.json").touch()
    check_refusal(lambda: latest(three_checkpoints), str(three_checkpoints), "earlier version")
    assert newest_step(three_checkpoints) == 3


def test_a_full_disk_is_one_line_is_noticed_and_costs_no_checkpoint(tmp_path, monkeypatch):
    full = raising(OSError(errno.ENOSPC, "No space left on device"))
    save(tmp_path, {1: None}, keep=1)
    before = sys.unraisablehook, sys.excepthook, list(logging.getLogger("absl").filters)
    with open_checkpoints(tmp_path, keep=1) as checkpoints:  # closing is silent: it has been said
        assert (sys.unraisablehook, sys.excepthook, logging.getLogger("absl").filters) == before
        assert not checkpoints.has_failed()
        monkeypatch.setattr(module, "write_bytes", full)  # of the hashes, which are written last
        checkpoints.save(2, make_state(2))
        wait_for(checkpoints.has_failed)
        check_refusal(checkpoints.wait, f"{tmp_path}/checkpoints/2", "No space left", "free some space")
    assert names(tmp_path / FOLDER) == ["1"]
    assert latest(tmp_path)[0] == 1


@pytest.mark.slow
def test_a_full_disk_of_one_process_ends_all_at_once(tmp_path):
    program = f"""
        import errno, sys, time
        import numpy as np
        from endx_jax.cli import entry, train
        from endx_jax.parallel import distributed
        def main(arguments):
            distributed.initialize()
            import jax
            from jax.sharding import NamedSharding, PartitionSpec
            from endx_jax.parallel.mesh import MeshSettings, make_mesh
            from endx_jax.parallel.sharding import put
            from endx_jax.training import checkpoints
            from endx_jax.training.step import TrainState
            def full(*_):
                raise OSError(errno.ENOSPC, "No space left on device")
            if jax.process_index() == 0:
                checkpoints.write_bytes = full
            everywhere = NamedSharding(make_mesh(MeshSettings()), PartitionSpec())
            arrays = {{"step": np.int32(1), "params": {{"kernel": np.ones(2)}}, "opt_state": {{"mean": np.ones(2)}}}}
            state = TrainState(**put(arrays, jax.tree.map(lambda _: everywhere, arrays)))
            saving = checkpoints.Checkpoints({str(tmp_path)!r}, keep=1, metric="mrr", report=print)
            saving.save(1, state)
            saving.wait()
        train.main = main
        sys.exit(entry.run_verb(["train"]))
    """
    began = time.monotonic()
    processes = start_program(textwrap.dedent(program))
    errors = [process.communicate(timeout=60)[1].splitlines()[-1] for process in processes]
    assert [process.returncode for process in processes] == [2, 2]
    assert "No space left" in errors[0]
    assert errors[1].startswith("endx_jax: process 0 ended: can't write")
    assert time.monotonic() - began < 60


def test_a_checkpoint_that_does_not_fit_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    save(tmp_path, {1: None})
    with open_checkpoints(tmp_path) as checkpoints:
        # Step 4 bytes; parameters and two moments 3 * 8 * 4 * 4 bytes; Adam's count 4 bytes; 1 MB for metadata.
        free = [1_000_391, 1_000_392, 0]
        usage = lambda path: types.SimpleNamespace(total=free[0] and 10**9, free=free.pop(0))  # noqa: E731
        monkeypatch.setattr(module.shutil, "disk_usage", usage)
        check_refusal(lambda: checkpoints.save(2, make_state(2)), f"{tmp_path}/checkpoints/2", "needs 1 MB", "free")
        assert names(tmp_path / FOLDER) == ["1"]
        checkpoints.save(2, make_state(2))
        checkpoints.wait()
        checkpoints.save(3, make_state(3))  # a disk of an unknown size is not full
    assert newest_step(tmp_path) == 3


def test_the_newest_and_the_best_the_first_of_equal_ones_are_kept(tmp_path):
    save(tmp_path, {1: 0.2, 2: 0.9, 3: 0.9, 4: None}, keep=1)
    assert names(tmp_path / FOLDER) == ["2", "4"]
    assert best_step(tmp_path, "mrr") == 2
    save(tmp_path, {5: None, 6: None}, keep=2)
    assert names(tmp_path / FOLDER) == ["2", "5", "6"]


@pytest.mark.parametrize(
    ("ours", "named"),
    [
        ({"kernel": (4, 4)}, ["projection/kernel", "(8, 4) instead of (4, 4)"]),
        ({"kernel": (8, 4), "bias": (4,)}, ["projection/bias", "none instead of (4,)"]),
        ({}, ["projection/kernel", "(8, 4) instead of none"]),
    ],
)
def test_parameters_of_another_architecture_are_not_mixed(three, ours, named):
    for made in (np.zeros, lambda shape: jax.ShapeDtypeStruct(shape, np.float32)):
        params = {"projection": {name: made(shape) for name, shape in ours.items()}}
        check_refusal(lambda params=params: restore_params(three, 2, params), "checkpoint 2", "set model", *named)


def test_parameters_alone_can_be_restored_and_damaged_ones_are_refused(three_checkpoints):
    wanted = like(make_state(0)).params
    params = restore_params(three_checkpoints, 2, wanted)
    np.testing.assert_array_equal(params["projection"]["kernel"], np.full((8, 4), 2.0))
    flip_a_bit(three_checkpoints, 2)
    check_refusal(lambda: restore_params(three_checkpoints, 2, wanted), "checkpoint 2", "damaged", "missing or has")
    (three_checkpoints / FOLDER / "1" / HASHES).write_text('{"sha256": {}}')  # no hash covers the damage
    for file in (three_checkpoints / FOLDER / "1" / "params").rglob("*"):
        if file.is_file():
            file.write_bytes(file.read_bytes()[:20])
    check_refusal(lambda: restore_params(three_checkpoints, 1, wanted), "checkpoint 1", "can't be restored")


def test_metrics_are_uploaded_before_a_checkpoint_counts(tmp_path):
    newest = []
    with open_checkpoints(tmp_path, upload=lambda: newest.append(newest_step(tmp_path))) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, make_state(step))
    assert newest == [None, 1]


class Noted:
    """Checkpoints that note the steps and metrics which are saved."""

    def __init__(self):
        self.saved = []

    def save(self, step, state, metrics):
        self.saved.append((step, metrics))

    def has_failed(self):
        return False

    def wait(self):
        pass


def without_training(done=0):
    return types.SimpleNamespace(step=done, params={})


MONITOR = types.SimpleNamespace(steps=9, paused=contextlib.nullcontext, log_validation=lambda *_: None)


@pytest.mark.parametrize(
    ("minutes", "settings", "saved"),
    [
        (1, {"checkpoint_every": 4, "checkpoint_minutes": 3}, [3, 4, 7, 8, 11, 12]),
        (4, {"checkpoint_every": 1000}, [3, 6, 9, 12]),  # every ten minutes, if nothing else is said
        (4, {"checkpoint_every": 1000, "checkpoint_minutes": 0.0}, [12]),
    ],
)
def test_minutes_are_counted_from_the_last_checkpoint_of_any_kind(monkeypatch, minutes, settings, saved):
    now, checkpoints = [0], Noted()
    monkeypatch.setattr(hooks, "monotonic", lambda: now[0])
    saves = hooks.SavePolicy(loop.TrainSettings(**settings), int, checkpoints, MONITOR, None, last=12)

    def train_step(state, batch):
        now[0] += 60 * minutes
        return state, {}

    loop.fit(without_training(), train_step, [{}] * 12, [loop.Hook.every(1, saves)])
    assert [step for step, _ in checkpoints.saved] == saved


def test_a_validation_is_saved_with_its_metrics_and_a_checkpoint_at_a_signal_is_the_last_one():
    told, checkpoints = [0, 0, 0, 0, 15], Noted()
    stopping = hooks.EarlyStopping("mrr", patience=0, every=3)
    validation = hooks.Validation(lambda params: {"mrr": 0.5}, stopping, MONITOR)
    saves = hooks.SavePolicy(loop.TrainSettings(), lambda late: told.pop(0), checkpoints, MONITOR, validation, last=9)
    actions = [loop.Hook.every(3, validation, 9), loop.Hook.every(1, saves)]
    with pytest.raises(RunInterrupted, match="^stopped by SIGTERM: saved at step 5 of 9; run the same command"):
        loop.fit(without_training(), lambda state, batch: (state, {}), [{}] * 9, actions)
    assert checkpoints.saved == [(3, {"mrr": 0.5}), (5, None)]
    assert stopping.best == (3, 0.5)


def test_training_ends_after_all_hooks_of_the_step_at_which_one_ends_it():
    done = []
    actions = [loop.Hook.every(2, lambda step, *_: step == 4), loop.Hook.every(1, lambda step, *_: done.append(step))]
    loop.fit(without_training(done=1), lambda state, batch: (state, {}), [{}] * 9, actions)
    assert done == [2, 3, 4]
