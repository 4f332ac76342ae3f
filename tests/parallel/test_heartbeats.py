import json
import os
import subprocess
import sys
import textwrap
import time

import pytest

from endx_jax.errors import EndxError, RunInterrupted
from endx_jax.parallel import heartbeats as module
from endx_jax.parallel.heartbeats import FOLDER, Heartbeats
from endx_jax.parallel.peers import Beat, beat_file

EVERY = 0.05


def own_beat(workdir):
    return json.loads((workdir / FOLDER / "0.json").read_text())


def wait_for(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def as_process_0_of_2(monkeypatch):
    """The other process is whatever a test writes for it."""
    monkeypatch.setattr(module.jax, "process_count", lambda: 2)
    monkeypatch.setattr(module, "on_abort", lambda explain: None)


def write_peer(workdir, **changes):
    values = {"phase": "step", "phase_seconds": 0.0, "time": time.time()} | changes
    beat_file(workdir / FOLDER, 1).write_text(Beat(process=1, host="b", pid=9, step=3, **values).text)


def test_a_process_says_what_it_does(tmp_path):
    with Heartbeats(tmp_path, peer_timeout=0, every=EVERY) as heartbeats:
        assert own_beat(tmp_path)["phase"] == "starting"
        heartbeats.phase, heartbeats.step = "reading", 12
        wait_for(lambda: own_beat(tmp_path)["phase"] == "reading")
        found = own_beat(tmp_path)
        assert (found["process"], found["pid"], found["step"], found["status"]) == (0, os.getpid(), 12, None)
    assert (own_beat(tmp_path)["phase"], own_beat(tmp_path)["status"]) == ("done", 0)


@pytest.mark.parametrize(
    ("failure", "status"), [(EndxError("no such file"), 2), (RunInterrupted("told to stop"), 75), (KeyError("x"), 2)]
)
def test_the_last_beat_says_why(tmp_path, failure, status):
    with pytest.raises(type(failure)), Heartbeats(tmp_path, peer_timeout=0, every=EVERY):
        raise failure
    last = own_beat(tmp_path)
    assert (last["phase"], last["status"], last["message"]) == ("failed", status, str(failure))


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path):
    (tmp_path / FOLDER).write_text("a file in the way")
    with Heartbeats(tmp_path, peer_timeout=10, every=EVERY) as heartbeats:
        time.sleep(4 * EVERY)
        heartbeats.phase = "step"


def run_into(failure, workdir, **peer):
    """A run that fails while the other process's last word is `peer`."""
    with Heartbeats(workdir, peer_timeout=10, every=EVERY):
        write_peer(workdir, **peer)
        raise failure


def test_an_error_is_explained_by_a_peer_that_is_gone(tmp_path, as_process_0_of_2):
    silence = r"process 1 on b \(pid 9\) has been silent for 0 s, since step 3 \(step\)"
    with pytest.raises(RunInterrupted, match=silence):
        run_into(ValueError("Gloo AllGather failed"), tmp_path)
    assert own_beat(tmp_path)["phase"] == "left"


def test_an_error_is_explained_by_the_mistake_that_ended_a_peer(tmp_path, as_process_0_of_2):
    with pytest.raises(EndxError, match="process 1 on b .* has ended: no such file"):
        run_into(ValueError("Gloo AllGather failed"), tmp_path, phase="failed", status=2, message="no such file")


def test_an_error_of_ones_own_stays_what_it_is(tmp_path, as_process_0_of_2, monkeypatch):
    monkeypatch.setattr(module.time, "sleep", lambda seconds: write_peer(tmp_path))  # it lives
    with pytest.raises(ZeroDivisionError):
        run_into(ZeroDivisionError(), tmp_path)


def test_a_wait_for_a_peer_that_is_gone_ends(tmp_path):
    """In a process of its own, whose main thread hangs as in a collective."""
    program = f"""
        import pathlib, time
        import jax
        from endx_jax.parallel import distributed, heartbeats
        jax.process_count, jax.process_index = (lambda: 2), (lambda: 0)
        jax.distributed.is_initialized, distributed.FAREWELL_SECONDS = (lambda: True), 0.0
        workdir = pathlib.Path({str(tmp_path)!r})
        with heartbeats.Heartbeats(workdir, peer_timeout=0.5, every={EVERY}) as mine:
            time.sleep(600)
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=False
    )
    warning, line = ended.stderr.splitlines()
    assert warning.startswith("warning: process 1 has not been heard of for 0 s")
    assert line.startswith("endx: process 1 has not been heard of for 1 s; the same command goes on")
    assert ended.returncode == 75
