"""The lock of a workdir, held by a real process that is really killed."""

import errno
import fcntl
import json
import os
import platform
import subprocess
import sys

import pytest
from helpers import one_line_error

from endx_jax.experiment.workdir import LOCK, run_lock

HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "a+")
fcntl.flock(file, fcntl.LOCK_EX)
file.write('{"host": "h", "process": 7, "since": "then"}')
file.flush()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """A process that holds the workdir."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path / LOCK)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_run_is_refused_until_the_first_one_dies(tmp_path, holder):
    message = f"{tmp_path} is in use by process 7 on h since then: wait for it, stop it or choose another workdir"
    with one_line_error(message), run_lock(tmp_path):
        pass
    holder.kill()
    holder.wait()
    with run_lock(tmp_path):
        assert set(json.loads((tmp_path / LOCK).read_text())) == {"host", "process", "since"}


@pytest.mark.parametrize(
    "signed",
    [b"", b"[1]", b"{}", b"[" * 100_000, b"9" * 5_000, b"\xff", b'{"host": "a\\nb", "process": 7, "since": ""}'],
    ids=range(7),
)
def test_a_holder_that_has_not_signed_is_refused_too(tmp_path, holder, signed):
    (tmp_path / LOCK).write_bytes(signed)
    with one_line_error(f"in use by another process \\(`fuser {tmp_path}/.lock` names it\\): wait"), run_lock(tmp_path):
        pass


def test_a_process_that_has_ended_is_not_named_as_the_holder(tmp_path, holder):
    """A process that only reads can lock the file without signing it, long after the one that signed it has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    (tmp_path / LOCK).write_text(json.dumps({"host": platform.node(), "process": ended.pid, "since": "then"}))
    with one_line_error("in use by another process"), run_lock(tmp_path):
        pass


def test_the_target_of_a_symbolic_link_is_not_overwritten(tmp_path):
    (tmp_path / "precious").write_text("contents")
    (tmp_path / LOCK).symlink_to("precious")
    with one_line_error(f"can't write {tmp_path}/.lock: it is a symbolic link; remove it"), run_lock(tmp_path):
        pass
    assert (tmp_path / "precious").read_text() == "contents"


def test_a_folder_in_which_nothing_was_written_is_taken_back(tmp_path):
    fresh = tmp_path / "runs" / "fresh"
    with run_lock(fresh):
        assert fresh.is_dir()
    assert not fresh.exists()
    with run_lock(fresh):
        (fresh / "config.json").touch()
    assert {file.name for file in fresh.iterdir()} == {LOCK, "config.json"}
    with run_lock(tmp_path):
        pass
    assert tmp_path.is_dir()  # it was there before


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EIO])
def test_a_file_system_without_locks_is_reported_in_one_line(tmp_path, monkeypatch, capsys, number):
    def no_locks(*arguments):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with run_lock(tmp_path):
        pass
    found = capsys.readouterr().out
    assert f"can't be locked ({os.strerror(number)}): do not start a second run in this workdir\n" in found
    assert found.count("\n") == 1


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with one_line_error("can't be written"), run_lock(tmp_path / "file" / "run"):
        pass
