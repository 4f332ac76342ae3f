import collections
import errno
import json
import logging
import os
import pathlib
import shutil
import sys
from unittest import mock

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import one_line_error

from endx_jax.errors import EndxError, RunInterrupted
from endx_jax.parallel import MeshSettings, make_mesh, state_shardings
from endx_jax.training import checkpoints as module
from endx_jax.training import hooks, loop
from endx_jax.training.checkpoints import (
    FOLDER,
    MANIFESTS,
    Checkpoints,
    abstract,
    best_step,
    newest_step,
    restore_params,
)
from endx_jax.training.state import TrainState


def make_state(step, value=1.0):
    params = {"projection": {"kernel": jnp.full((8, 4), value)}}
    state = TrainState.create(params, optax.scale_by_adam())
    return state.replace(step=jnp.asarray(step, jnp.int32))


def open_checkpoints(workdir, keep=2, report=None):
    return Checkpoints(workdir, keep=keep, metric="mrr", report=report or (lambda line: None))


def like(state, **mesh):
    shardings = state_shardings(state, make_mesh(MeshSettings(**mesh)))
    return abstract(state, shardings)


def flip_a_bit(workdir, step):
    """Flips one bit in the middle of the largest file of a checkpoint."""
    file = max((workdir / FOLDER / str(step)).rglob("*"), key=lambda f: f.stat().st_size if f.is_file() else -1)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.fixture
def three_checkpoints(tmp_path):
    checkpoints = open_checkpoints(tmp_path, keep=3)
    for step in (1, 2, 3):
        checkpoints.save(step, make_state(step, float(step)))
    checkpoints.close()
    return tmp_path


def test_a_state_comes_back_bit_for_bit_on_another_topology(tmp_path):
    state = make_state(5)
    kernel = jax.random.normal(jax.random.key(0), (8, 4))
    state = state.replace(params={"projection": {"kernel": kernel}})
    checkpoints = open_checkpoints(tmp_path)
    checkpoints.save(5, state)
    checkpoints.wait()
    restored = checkpoints.restore(5, like(state, data=2, fsdp=4))
    checkpoints.close()
    chex.assert_trees_all_equal(restored, state)
    assert restored.params["projection"]["kernel"].addressable_shards[0].data.shape == (2, 4)


def test_a_flipped_bit_is_refused_and_the_one_before_is_used(three_checkpoints):
    flip_a_bit(three_checkpoints, 3)
    lines = []
    checkpoints = open_checkpoints(three_checkpoints, report=lines.append)
    assert checkpoints.latest_step == 2
    restored = checkpoints.restore(2, like(make_state(0)))
    assert float(restored.params["projection"]["kernel"][0, 0]) == 2.0
    assert len(lines) == 1
    assert "checkpoint 3 can't be used" in lines[0]
    assert "the previous one is used" in lines[0]
    checkpoints.save(3, make_state(3))  # the place is free again
    checkpoints.close()


def test_a_checkpoint_without_its_manifest_does_not_count(three_checkpoints):
    (three_checkpoints / MANIFESTS / "3.json").unlink()
    lines = []
    checkpoints = open_checkpoints(three_checkpoints, report=lines.append)
    assert checkpoints.latest_step == 2
    assert "it is incomplete" in lines[0]
    checkpoints.close()


def test_a_missing_file_is_damage(three_checkpoints):
    file = next(f for f in (three_checkpoints / FOLDER / "3").rglob("*") if f.is_file())
    file.unlink()
    checkpoints = open_checkpoints(three_checkpoints)
    assert checkpoints.latest_step == 2
    checkpoints.close()


def test_when_all_are_damaged_there_is_none(three_checkpoints):
    for step in (1, 2, 3):
        flip_a_bit(three_checkpoints, step)
    lines = []
    checkpoints = open_checkpoints(three_checkpoints, report=lines.append)
    assert checkpoints.latest_step is None
    assert [line.endswith("the previous one is used") for line in lines] == [True, True, False]
    assert lines[2].endswith("training starts from the beginning")
    checkpoints.close()


def test_a_file_cut_in_the_middle_is_damage(three_checkpoints):
    file = max((three_checkpoints / FOLDER / "3").rglob("*"), key=lambda f: f.stat().st_size if f.is_file() else -1)
    os.truncate(file, file.stat().st_size // 2)
    checkpoints = open_checkpoints(three_checkpoints)
    assert checkpoints.latest_step == 2
    checkpoints.close()


@pytest.mark.parametrize("text", ["", '{"step": 3, "metr', "[]", '{"step": 3, "metrics": null}'])
def test_a_manifest_that_cannot_be_read_is_damage(three_checkpoints, text):
    (three_checkpoints / MANIFESTS / "3.json").write_text(text)
    assert best_step(three_checkpoints, "mrr") == 2
    lines = []
    checkpoints = open_checkpoints(three_checkpoints, report=lines.append)
    assert checkpoints.latest_step == 2
    assert lines == [
        "checkpoint 3 can't be used: its manifest can't be read; it is removed and the previous one is used"
    ]
    checkpoints.close()


def test_a_damaged_best_is_found_when_training_goes_on(tmp_path):
    checkpoints = open_checkpoints(tmp_path, keep=3)
    for step, mrr in ((1, 0.9), (2, 0.5), (3, 0.4)):
        checkpoints.save(step, make_state(step), {"mrr": mrr})
    checkpoints.close()
    flip_a_bit(tmp_path, 1)
    lines = []
    checkpoints = open_checkpoints(tmp_path, report=lines.append)
    assert checkpoints.latest_step == 3
    assert best_step(tmp_path, "mrr") == 2
    assert len(lines) == 1
    assert "checkpoint 1, the best by mrr, can't be used: " in lines[0]
    checkpoints.close()


def test_incomplete_checkpoints_are_removed_silently(three_checkpoints):
    (three_checkpoints / MANIFESTS / "1.json").unlink()
    (three_checkpoints / MANIFESTS / ".4.json.x1y2").touch()  # a manifest in the middle of its writing
    lines = []
    checkpoints = open_checkpoints(three_checkpoints, report=lines.append)
    assert checkpoints.latest_step == 3
    assert not (three_checkpoints / FOLDER / "1").exists()
    assert {file.name for file in (three_checkpoints / MANIFESTS).iterdir()} == {"2.json", "3.json"}
    assert lines == []
    checkpoints.close()


@pytest.fixture
def full_disk(monkeypatch):
    """Manifests can't be written."""

    def refuse(path, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    def fill():
        monkeypatch.setattr(module, "write_bytes", refuse)

    return fill


def test_a_full_disk_is_one_line_and_costs_no_checkpoint(tmp_path, full_disk):
    checkpoints = open_checkpoints(tmp_path, keep=1)
    checkpoints.save(1, make_state(1))
    checkpoints.wait()
    full_disk()
    checkpoints.save(2, make_state(2))
    with one_line_error(f"can't write {tmp_path}/checkpoints/2: No space left on device; free some space"):
        checkpoints.wait()
    checkpoints.close()  # silent: it has been said
    assert [folder.name for folder in (tmp_path / FOLDER).iterdir()] == ["1"]
    checkpoints = open_checkpoints(tmp_path, keep=1)
    assert checkpoints.latest_step == 1
    checkpoints.close()


def test_a_checkpoint_that_does_not_fit_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    checkpoints = open_checkpoints(tmp_path)
    checkpoints.save(1, make_state(1))
    checkpoints.wait()
    usage = collections.namedtuple("usage", "total used free")
    for free, fits in ((1_000_391, False), (1_000_392, True)):
        # Step 4 bytes; parameters and two moments 3 * 8 * 4 * 4 bytes; Adam's count 4 bytes; 1 MB for metadata.
        monkeypatch.setattr(module.shutil, "disk_usage", lambda path, free=free: usage(10**9, 10**9 - free, free))
        if fits:
            checkpoints.save(2, make_state(2))
        else:
            with one_line_error(f"can't write {tmp_path}/checkpoints/2: it needs 1 MB and 1 MB are free; free"):
                checkpoints.save(2, make_state(2))
    checkpoints.close()
    assert sorted(folder.name for folder in (tmp_path / FOLDER).iterdir()) == ["1", "2"]


def test_logging_and_exception_hooks_are_left_as_they_are(tmp_path):
    before = sys.unraisablehook, sys.excepthook, list(logging.getLogger("absl").filters)
    checkpoints = open_checkpoints(tmp_path)
    assert (sys.unraisablehook, sys.excepthook, logging.getLogger("absl").filters) == before
    checkpoints.close()


def test_a_write_that_failed_is_noticed_before_the_next_one(tmp_path, full_disk):
    checkpoints = open_checkpoints(tmp_path)
    assert not checkpoints.has_failed()
    full_disk()
    checkpoints.save(1, make_state(1))
    checkpoints._finisher.shutdown()  # the write has ended
    assert checkpoints.has_failed()
    with one_line_error("No space left"):
        checkpoints.wait()
    checkpoints.close()


def test_the_newest_and_the_best_are_kept(tmp_path):
    checkpoints = open_checkpoints(tmp_path, keep=1)
    for step, mrr in ((1, 0.2), (2, 0.9), (3, 0.5), (4, None)):
        checkpoints.save(step, make_state(step), None if mrr is None else {"mrr": mrr})
    checkpoints.close()
    assert sorted(folder.name for folder in (tmp_path / FOLDER).iterdir() if folder.is_dir()) == ["2", "4"]
    assert best_step(tmp_path, "mrr") == 2


def test_the_earlier_of_equally_good_checkpoints_is_best(tmp_path):
    checkpoints = open_checkpoints(tmp_path)
    for step in (1, 2):
        checkpoints.save(step, make_state(step), {"mrr": 0.5})
    checkpoints.close()
    assert best_step(tmp_path, "mrr") == 1


def test_a_checkpoint_whose_removal_fails_half_way_no_longer_counts(tmp_path, monkeypatch):
    checkpoints = open_checkpoints(tmp_path, keep=1)
    checkpoints.save(1, make_state(1), {"mrr": 0.1})
    checkpoints.wait()

    def fail(folder):
        assert pathlib.Path(folder) == tmp_path / FOLDER / "1"
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(shutil, "rmtree", fail)
    checkpoints.save(2, make_state(2), {"mrr": 0.2})
    with pytest.raises(OSError, match="Input/output error"):
        checkpoints.wait()
    checkpoints.close()
    assert sorted(folder.name for folder in (tmp_path / FOLDER).iterdir()) == ["1", "2"]
    assert [manifest.name for manifest in (tmp_path / MANIFESTS).iterdir()] == ["2.json"]
    with one_line_error("checkpoint 1 .* is damaged: it is incomplete"):
        restore_params(tmp_path, 1, like(make_state(0)).params)


@pytest.mark.parametrize(
    ("ours", "message"),
    [
        ({"kernel": (4, 4)}, r"its projection/kernel has the shape \(8, 4\) instead of \(4, 4\); set model"),
        ({"kernel": (8, 4), "bias": (4,)}, r"its projection/bias has the shape none instead of \(4,\)"),
        ({}, r"its projection/kernel has the shape \(8, 4\) instead of none"),
    ],
)
@pytest.mark.parametrize("on_host", [True, False])
def test_parameters_of_another_architecture_are_not_mixed(three_checkpoints, ours, message, on_host):
    """Orbax would leave the missing ones as they are in the target."""
    made = np.zeros if on_host else lambda shape: jax.ShapeDtypeStruct(shape, np.float32)
    with one_line_error(f"checkpoint 2 in .* has another architecture: {message}"):
        restore_params(three_checkpoints, 2, {"projection": {name: made(shape) for name, shape in ours.items()}})


def test_damage_that_no_hash_covers_is_one_line(three_checkpoints):
    manifest = three_checkpoints / MANIFESTS / "2.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"sha256": {}}))
    for file in (three_checkpoints / FOLDER / "2" / "params").rglob("*"):
        if file.is_file():
            file.write_bytes(file.read_bytes()[:20])
    with one_line_error("checkpoint 2 in .* can't be restored: "):
        restore_params(three_checkpoints, 2, like(make_state(0)).params)


def test_parameters_alone_can_be_restored(three_checkpoints):
    params = restore_params(three_checkpoints, 2, like(make_state(0)).params)
    np.testing.assert_array_equal(params["projection"]["kernel"], np.full((8, 4), 2.0))


def test_damaged_parameters_are_refused(three_checkpoints):
    flip_a_bit(three_checkpoints, 2)
    with pytest.raises(EndxError, match=r"checkpoint 2 .* is damaged: .* is missing or has changed"):
        restore_params(three_checkpoints, 2, like(make_state(0)).params)


def test_manifests_of_removed_checkpoints_go_too(tmp_path):
    checkpoints = open_checkpoints(tmp_path, keep=1)
    for step in (1, 2):
        checkpoints.save(step, make_state(step))
    checkpoints.close()
    open_checkpoints(tmp_path, keep=1).close()
    assert [file.name for file in (tmp_path / MANIFESTS).iterdir()] == ["2.json"]
    assert json.loads((tmp_path / MANIFESTS / "2.json").read_text())["step"] == 2


def test_a_file_system_of_unknown_size_is_not_full(tmp_path, monkeypatch):
    usage = collections.namedtuple("usage", "total used free")
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: usage(0, 0, 0))
    checkpoints = open_checkpoints(tmp_path)
    checkpoints.save(1, make_state(1))
    checkpoints.close()
    assert newest_step(tmp_path) == 1


def test_metrics_are_uploaded_before_a_checkpoint_counts(tmp_path):
    newest = []
    options = {"keep": 2, "metric": "mrr", "report": lambda line: None}
    checkpoints = Checkpoints(tmp_path, upload=lambda: newest.append(newest_step(tmp_path)), **options)
    for step in (1, 2):
        checkpoints.save(step, make_state(step))
    checkpoints.close()
    assert newest == [None, 1]


def test_minutes_are_counted_from_the_last_checkpoint_of_any_kind(monkeypatch):
    """A step takes a minute; a checkpoint is due every 4 steps and after 3 minutes."""
    now, checkpoints = [0], mock.MagicMock(has_failed=lambda: False)
    monkeypatch.setattr(hooks, "monotonic", lambda: now[0])
    settings = loop.TrainSettings(checkpoint_every=4, checkpoint_minutes=3)
    saves = hooks.SavePolicy(settings, int, checkpoints, mock.MagicMock(), None, last=13)

    def train_step(state, batch):
        now[0] += 60
        return state, {}

    loop.fit(mock.MagicMock(step=0), train_step, [{}] * 13, [loop.Hook.every(1, saves)])
    assert [call.args[0] for call in checkpoints.save.call_args_list] == [3, 4, 7, 8, 11, 12, 13]


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
