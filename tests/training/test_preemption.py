import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from helpers import raising, status_of_fork

from endx_jax.errors import INTERRUPTED, TRY_AGAIN, RunInterrupted
from endx_jax.parallel import MeshSettings, make_mesh
from endx_jax.training import preemption
from endx_jax.training.preemption import SAVE, Preemption

WORKDIR = pathlib.Path("nowhere")
AGAIN = "run the same command to start again: there is no checkpoint yet"
LEFT = TRY_AGAIN, f"endx_jax: stopped by SIGTERM; {AGAIN}\n"


@pytest.fixture
def left(monkeypatch, capfd):
    """Fills up with what would have ended this process; as in a notebook, no thread reacts to signals."""
    found = []
    monkeypatch.setattr(os, "_exit", lambda status: found.append((status, capfd.readouterr().err)))
    monkeypatch.setattr(sys, "ps1", "", raising=False)
    return found


def tell(number=signal.SIGTERM):
    os.kill(os.getpid(), number)


def test_a_notice_during_training_is_remembered(left):
    mesh = make_mesh(MeshSettings())
    with Preemption(WORKDIR) as told, told.deferred():
        assert told.agreed(mesh) == 0
        tell()
        assert told.agreed(mesh) == signal.SIGTERM
        assert left == []
    assert left == [LEFT]  # nobody acted on it


def test_a_notice_at_any_other_time_ends_the_process(left):
    with Preemption(WORKDIR) as told:
        tell()
        assert left == [LEFT]
        left.clear()
    with Preemption(WORKDIR) as told:
        with told.deferred():
            pass
        assert left == []
        tell()
        assert left == [LEFT]


def test_signals_are_left_as_they_were_and_in_another_thread_alone():
    found, before = [], signal.getsignal(signal.SIGTERM)

    def enter():
        with Preemption(WORKDIR):
            found.append(signal.getsignal(signal.SIGTERM))

    enter()
    assert signal.getsignal(signal.SIGTERM) == before
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert (found[0] != before, found[1] == before) == (True, True)


@pytest.mark.parametrize(("processes", "answers"), [(1, [1, 0, 1, 15]), (2, [0, 1, 0, 1])])
def test_a_request_for_a_checkpoint_is_agreed_on_and_a_signal_comes_first(left, monkeypatch, processes, answers):
    mesh = make_mesh(MeshSettings())
    monkeypatch.setattr("jax.process_count", lambda: processes)
    with contextlib.suppress(KeyError), Preemption(WORKDIR) as told, told.deferred():
        found = [told.agreed(mesh, True), told.agreed(mesh, False), told.agreed(mesh, True)]
        tell()
        assert [*found, told.agreed(mesh, True)] == answers
        assert answers[0] in (0, SAVE)
        assert told.agreed(mesh) == signal.SIGTERM
        raise KeyError


def test_the_wake_up_descriptor_is_given_back_too():
    with socket.socket() as own:
        own.setblocking(False)
        signal.set_wakeup_fd(own.fileno())
        with Preemption(WORKDIR):
            pass
        assert signal.set_wakeup_fd(-1) == own.fileno()


def test_a_forked_process_has_the_signals_that_it_had_without_a_run():
    def state():
        return [signal.getsignal(number) for number in preemption.NAMES], signal.set_wakeup_fd(-1)

    before = state()

    def check():
        assert state() == before

    with Preemption(WORKDIR):
        assert status_of_fork(check) == 0
        assert state() != before


class Unlisted:
    """A workdir whose path an action returns, or raises an error instead."""

    def __init__(self, act):
        self.act = act

    def __fspath__(self):
        return self.act() or "nowhere"


@pytest.mark.parametrize(
    "act",
    [raising(RunInterrupted("the bucket can't be reached")), lambda: os.listdir("nowhere"), lambda: time.sleep(3)],
)
def test_a_workdir_that_cannot_be_listed_in_time_does_not_keep_a_process(left, act):
    with Preemption(Unlisted(act)):
        tell()
    assert left == [(TRY_AGAIN, "endx_jax: stopped by SIGTERM; run the same command to resume\n")]


def test_in_a_notebook_a_second_interrupt_is_an_exception(left):
    mesh = make_mesh(MeshSettings())
    with Preemption(WORKDIR) as told, contextlib.suppress(KeyError), told.deferred():
        tell(signal.SIGINT)
        assert told.agreed(mesh) == signal.SIGINT
        tell(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt, match="^stopped by Ctrl-C; run the same .* no checkpoint yet$"):
            tell(signal.SIGINT)
        raise KeyError
    with pytest.raises(KeyboardInterrupt), Preemption(WORKDIR):
        tell(signal.SIGINT)
    assert left == []


def test_ignored_interrupts_stay_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Preemption(WORKDIR):
            assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


# One process imports once and forks three children in turn: each prints its process id, and the parent then its exit
# status. In a long step the main thread is in code that handles no signals.
STEPS = """
import contextlib, hashlib, os, pathlib, sys
from endx_jax.training.preemption import Preemption
for deferred in (False, False, True):
    if child := os.fork():
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    with Preemption(pathlib.Path(sys.argv[1])) as told, told.deferred() if deferred else contextlib.nullcontext():
        print(os.getpid(), flush=True)
        hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
"""


def test_a_process_leaves_at_once_with_one_line(tmp_path):
    command = [sys.executable, "-c", STEPS, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for number, name, status, deferred in (
            (signal.SIGTERM, "SIGTERM", TRY_AGAIN, False),
            (signal.SIGINT, "Ctrl-C", INTERRUPTED, False),
            (signal.SIGINT, "Ctrl-C", INTERRUPTED, True),
        ):
            child = int(process.stdout.readline())
            try:
                os.kill(child, number)
                if deferred:
                    assert process.stderr.readline() == preemption.NOTICE.decode()
                    os.kill(child, number)
                assert process.stderr.readline() == f"endx_jax: stopped by {name}; {AGAIN}\n"
                assert int(process.stdout.readline()) == status
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
        assert process.communicate(timeout=30) == ("", "")


def test_the_last_line_names_the_newest_checkpoint(left, trained_workdir):
    with Preemption(trained_workdir):
        tell()
    resume = "run the same command to resume at step 6, its checkpoint"
    assert left == [(TRY_AGAIN, f"endx_jax: stopped by SIGTERM; {resume}\n")]


def test_a_second_sigterm_does_not_prevent_the_checkpoint_and_a_notice_is_acted_on_once(left):
    mesh = make_mesh(MeshSettings())
    with Preemption(WORKDIR) as told:
        with contextlib.suppress(KeyError), told.deferred():
            tell()
            tell()
            assert told.agreed(mesh) == signal.SIGTERM
            raise KeyError
        assert left == []
