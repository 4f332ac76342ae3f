import contextlib
import os
import signal
import subprocess
import sys
import threading

import pytest

from endx_jax.errors import TRY_AGAIN
from endx_jax.parallel import MeshSettings, make_mesh
from endx_jax.training import preemption
from endx_jax.training.preemption import Preemption


@pytest.fixture
def left(monkeypatch):
    """Fills up with what would have ended this process."""
    found = []
    monkeypatch.setattr(preemption, "_exit_now", lambda: found.append("left"))
    return found


def tell():
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_notice_during_training_is_remembered(left):
    mesh = make_mesh(MeshSettings())
    with Preemption() as told, told.deferred():
        assert not told.should_stop(mesh)
        tell()
        assert told.should_stop(mesh)
        assert left == []
    assert left == ["left"]  # nobody acted on it


def test_a_notice_at_any_other_time_ends_the_process(left):
    with Preemption() as told:
        tell()
        assert left == ["left"]
        left.clear()
    with Preemption() as told:
        with told.deferred():
            pass
        assert left == []
        tell()
        assert left == ["left"]


def test_a_notice_is_acted_on_once(left):
    with Preemption() as told:
        with contextlib.suppress(KeyError), told.deferred():
            tell()
            raise KeyError
        assert left == []


def test_several_processes_learn_of_it_one_step_later(left, monkeypatch):
    mesh = make_mesh(MeshSettings())
    monkeypatch.setattr("jax.process_count", lambda: 2)
    with Preemption() as told, told.deferred():
        assert [told.should_stop(mesh), told.should_stop(mesh)] == [False, False]
        tell()
        assert [told.should_stop(mesh), told.should_stop(mesh)] == [False, True]


def test_signals_are_left_as_they_were():
    before = signal.getsignal(signal.SIGTERM)
    with Preemption():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


def test_in_another_thread_signals_are_left_alone():
    found = []

    def enter():
        with Preemption():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGTERM)]


def test_leaving_says_one_line_and_ends_with_the_status_that_is_requeued():
    program = "from endx_jax.training import preemption; preemption._exit_now(); print('not reached')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (TRY_AGAIN, "", preemption.EXIT_MESSAGE)
    assert preemption.EXIT_MESSAGE.count("\n") == 1
