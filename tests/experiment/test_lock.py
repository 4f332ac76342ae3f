"""The lock of a workdir, held by a real process that is really killed."""

import errno
import fcntl
import json
import subprocess
import sys

import pytest
from helpers import one_line_error

from endx_jax.experiment.lock import FILE, RunLock

HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "a+")
fcntl.lockf(file, fcntl.LOCK_EX)
file.write('{"host": "h", "process": 7, "since": "then"}')
file.flush()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """A process that holds the workdir."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path / FILE)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_run_is_refused_until_the_first_one_dies(tmp_path, holder):
    message = f"{tmp_path} is in use by process 7 on h since then: wait for it, stop it or choose another --workdir"
    with one_line_error(message), RunLock(tmp_path):
        pass
    holder.kill()
    holder.wait()
    with RunLock(tmp_path):
        assert set(json.loads((tmp_path / FILE).read_text())) == {"host", "process", "since"}


def test_a_holder_that_has_not_signed_yet_is_refused_too(tmp_path, holder):
    (tmp_path / FILE).write_text("")
    with one_line_error("in use by another run"), RunLock(tmp_path):
        pass


def test_a_folder_in_which_nothing_was_written_is_taken_back(tmp_path):
    fresh = tmp_path / "runs" / "fresh"
    with RunLock(fresh):
        assert fresh.is_dir()
    assert not fresh.exists()
    with RunLock(fresh):
        (fresh / "config.json").touch()
    assert {file.name for file in fresh.iterdir()} == {FILE, "config.json"}
    with RunLock(tmp_path):
        pass
    assert tmp_path.is_dir()  # it was there before


def test_where_nothing_can_be_locked_one_line_says_so(tmp_path, monkeypatch, capsys):
    def no_locks(*arguments):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", no_locks)
    with RunLock(tmp_path):
        pass
    found = capsys.readouterr().out
    assert "can't be locked (No locks available): nothing keeps a second run out" in found
    assert found.count("\n") == 1


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with one_line_error("can't be written"), RunLock(tmp_path / "file" / "run"):
        pass
