import collections
import contextlib
import errno
import logging
import os
import re
import shutil
import sys
import time
from unittest import mock

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from helpers import flip_a_bit, largest_file, one_line_error, refused

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


def test_a_flipped_bit_is_refused_and_the_one_before_is_used(three_checkpoints):
    flip_a_bit(three_checkpoints, 3)
    lines = []
    with open_checkpoints(three_checkpoints, report=lines.append) as checkpoints:
        assert checkpoints.latest_step == 2
        restored = checkpoints.restore(2, like(make_state(0)))
        assert float(restored.params["projection"]["kernel"][0, 0]) == 2.0
        assert re.fullmatch(r"checkpoint 3 can't be used: \S+ is missing or has changed; it is removed", *lines)
        checkpoints.save(3, make_state(3))  # the place is free again


def test_missing_and_shortened_files_are_damage(three_checkpoints):
    largest_file(three_checkpoints, 3).unlink()
    assert latest(three_checkpoints)[0] == 2
    file = largest_file(three_checkpoints, 2)
    os.truncate(file, file.stat().st_size // 2)
    assert latest(three_checkpoints)[0] == 1
    flip_a_bit(three_checkpoints, 1)
    assert latest(three_checkpoints)[0] is None


@pytest.mark.parametrize("text", [None, "", '{"step": 3, "metrics": null}'])  # tests/experiment fuzzes others
def test_without_hashes_a_checkpoint_does_not_count(three_checkpoints, text):
    file = three_checkpoints / FOLDER / "3" / HASHES
    file.unlink() if text is None else file.write_text(text)
    assert best_step(three_checkpoints, "mrr") == 2
    said = "checkpoint 3 can't be used: hashes.json is missing or has changed; it is removed"
    assert latest(three_checkpoints) == (2, [said])


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
    end = time.monotonic() + 10  # Orbax may remove its own folders a little later
    while names(three_checkpoints / FOLDER) != ["2", "3"]:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_checkpoints_of_an_earlier_version_are_left_alone(three_checkpoints):
    (three_checkpoints / "checkpoint_manifests").mkdir()
    (three_checkpoints / "checkpoint_manifests" / "3.json").touch()
    refused("holds checkpoints of an earlier version", latest, three_checkpoints)
    assert newest_step(three_checkpoints) == 3


def fill_disk(monkeypatch):
    """Lets the writing of hashes fail."""
    full = mock.Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr(module, "write_bytes", full)


def test_a_full_disk_is_one_line_and_costs_no_checkpoint(tmp_path, monkeypatch):
    save(tmp_path, {1: None}, keep=1)
    with open_checkpoints(tmp_path, keep=1) as checkpoints:  # closing is silent: it has been said
        fill_disk(monkeypatch)
        checkpoints.save(2, make_state(2))
        refused(f"can't write {tmp_path}/checkpoints/2: No space left on device; free some space", checkpoints.wait)
    assert names(tmp_path / FOLDER) == ["1"]
    assert latest(tmp_path)[0] == 1


def test_a_checkpoint_that_does_not_fit_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    save(tmp_path, {1: None})
    usage = collections.namedtuple("usage", "total used free")
    with open_checkpoints(tmp_path) as checkpoints:
        # Step 4 bytes; parameters and two moments 3 * 8 * 4 * 4 bytes; Adam's count 4 bytes; 1 MB for metadata.
        free = [1_000_391, 1_000_392, 0]
        monkeypatch.setattr(module.shutil, "disk_usage", lambda path: usage(free[0] and 10**9, 10**9, free.pop(0)))
        with one_line_error(f"can't write {tmp_path}/checkpoints/2: it needs 1 MB and 1 MB are free; free"):
            checkpoints.save(2, make_state(2))
        assert names(tmp_path / FOLDER) == ["1"]
        checkpoints.save(2, make_state(2))
        checkpoints.wait()
        checkpoints.save(3, make_state(3))  # a disk of an unknown size is not full
    assert newest_step(tmp_path) == 3


def test_a_write_that_failed_is_noticed_before_the_next_one_and_hooks_stay_as_they_are(tmp_path, monkeypatch):
    before = sys.unraisablehook, sys.excepthook, list(logging.getLogger("absl").filters)
    with open_checkpoints(tmp_path) as checkpoints:
        assert (sys.unraisablehook, sys.excepthook, logging.getLogger("absl").filters) == before
        assert not checkpoints.has_failed()
        fill_disk(monkeypatch)
        checkpoints.save(1, make_state(1))
        checkpoints._finisher.shutdown()  # the write has ended
        assert checkpoints.has_failed()
        refused("No space left", checkpoints.wait)


def test_the_newest_and_the_best_the_first_of_equal_ones_are_kept(tmp_path):
    save(tmp_path, {1: 0.2, 2: 0.9, 3: 0.9, 4: None}, keep=1)
    assert names(tmp_path / FOLDER) == ["2", "4"]
    assert best_step(tmp_path, "mrr") == 2
    save(tmp_path, {5: None, 6: None}, keep=2)
    assert names(tmp_path / FOLDER) == ["2", "5", "6"]


@pytest.mark.parametrize(
    ("ours", "message"),
    [
        ({"kernel": (4, 4)}, r"its projection/kernel has the shape \(8, 4\) instead of \(4, 4\); set model"),
        ({"kernel": (8, 4), "bias": (4,)}, r"its projection/bias has the shape none instead of \(4,\)"),
        ({}, r"its projection/kernel has the shape \(8, 4\) instead of none"),
    ],
)
def test_parameters_of_another_architecture_are_not_mixed(three, ours, message):
    for made in (np.zeros, lambda shape: jax.ShapeDtypeStruct(shape, np.float32)):
        with one_line_error(f"checkpoint 2 in .* has another architecture: {message}"):
            restore_params(three, 2, {"projection": {name: made(shape) for name, shape in ours.items()}})


def test_parameters_alone_can_be_restored_and_damaged_ones_are_refused(three_checkpoints):
    wanted = like(make_state(0)).params
    params = restore_params(three_checkpoints, 2, wanted)
    np.testing.assert_array_equal(params["projection"]["kernel"], np.full((8, 4), 2.0))
    flip_a_bit(three_checkpoints, 2)
    refused(r"checkpoint 2 .* is damaged: .* is missing or has changed", restore_params, three_checkpoints, 2, wanted)
    (three_checkpoints / FOLDER / "1" / HASHES).write_text('{"sha256": {}}')  # no hash covers the damage
    for file in (three_checkpoints / FOLDER / "1" / "params").rglob("*"):
        if file.is_file():
            file.write_bytes(file.read_bytes()[:20])
    refused("checkpoint 1 in .* can't be restored: ", restore_params, three_checkpoints, 1, wanted)


def test_metrics_are_uploaded_before_a_checkpoint_counts(tmp_path):
    newest = []
    with open_checkpoints(tmp_path, upload=lambda: newest.append(newest_step(tmp_path))) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, make_state(step))
    assert newest == [None, 1]


@pytest.mark.parametrize(
    ("minutes", "settings", "saved"),
    [
        (1, {"checkpoint_every": 4, "checkpoint_minutes": 3}, [3, 4, 7, 8, 11, 12]),
        (4, {"checkpoint_every": 1000}, [3, 6, 9, 12]),  # every ten minutes, if nothing else is said
        (4, {"checkpoint_every": 1000, "checkpoint_minutes": 0.0}, [12]),
    ],
)
def test_minutes_are_counted_from_the_last_checkpoint_of_any_kind(monkeypatch, minutes, settings, saved):
    now, checkpoints = [0], mock.MagicMock(has_failed=lambda: False)
    monkeypatch.setattr(hooks, "monotonic", lambda: now[0])
    saves = hooks.SavePolicy(loop.TrainSettings(**settings), int, checkpoints, mock.MagicMock(), None, last=12)

    def train_step(state, batch):
        now[0] += 60 * minutes
        return state, {}

    loop.fit(mock.MagicMock(step=0), train_step, [{}] * 12, [loop.Hook.every(1, saves)])
    assert [call.args[0] for call in checkpoints.save.call_args_list] == saved


def test_a_validation_is_saved_with_its_metrics_and_a_checkpoint_at_a_signal_is_the_last_one(monkeypatch):
    monkeypatch.setattr(hooks, "check_parameters", lambda params, step: None)
    told, checkpoints, monitor = [0, 0, 0, 0, 15], mock.MagicMock(has_failed=lambda: False), mock.MagicMock(steps=9)
    stopping = hooks.EarlyStopping("mrr", patience=0, every=3)
    validation = hooks.Validation(lambda params: {"mrr": 0.5}, stopping, monitor)
    saves = hooks.SavePolicy(loop.TrainSettings(), lambda late: told.pop(0), checkpoints, monitor, validation, last=9)
    actions = [loop.Hook.every(3, validation, 9), loop.Hook.every(1, saves)]
    with pytest.raises(RunInterrupted, match="^stopped by SIGTERM: saved at step 5 of 9; run the same command"):
        loop.fit(mock.MagicMock(step=0), lambda state, batch: (state, {}), [{}] * 9, actions)
    assert [call.args[::2] for call in checkpoints.save.call_args_list] == [(3, {"mrr": 0.5}), (5, None)]
    assert stopping.best == (3, 0.5)


def test_training_ends_after_all_hooks_of_the_step_at_which_one_ends_it():
    done = []
    actions = [loop.Hook.every(2, lambda step, *_: step == 4), loop.Hook.every(1, lambda step, *_: done.append(step))]
    loop.fit(mock.MagicMock(step=1), lambda state, batch: (state, {}), [{}] * 9, actions)
    assert done == [2, 3, 4]
