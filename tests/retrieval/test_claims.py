import errno
import fcntl
import subprocess
import sys

import pytest

from endx_jax.errors import EndxError
from endx_jax.retrieval.claims import Claims

HOLDER = """
import pathlib, sys
from endx_jax.retrieval.claims import Claims
with Claims(pathlib.Path(sys.argv[1])) as claims, claims.of(int(sys.argv[2])) as mine, claims.of_all():
    print(mine, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process, which has claimed part 3 and the whole."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path), "3"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "True\n"
        yield process
        process.kill()


def test_what_another_process_holds_is_not_mine_until_it_dies(tmp_path, holder):
    with Claims(tmp_path) as claims:
        for number, free in ((2, True), (3, False), (4, True)):
            with claims.of(number) as mine:
                assert mine == free
        holder.kill()
        holder.wait()
        with claims.of(3) as mine, claims.of_all():
            assert mine


def test_a_claim_ends_with_its_block(tmp_path):
    command = [sys.executable, "-c", HOLDER, str(tmp_path), "3"]
    with Claims(tmp_path / "new" / "folder"), Claims(tmp_path) as claims:
        with claims.of(3) as mine:
            assert mine
            assert subprocess.check_output(command, stdin=subprocess.DEVNULL, text=True) == "False\n"
        assert subprocess.check_output(command, stdin=subprocess.DEVNULL, text=True) == "True\n"


def test_a_folder_without_locks_is_refused(tmp_path, monkeypatch):
    def no_locks(*arguments):
        raise OSError(errno.ENOLCK, "No locks available")

    (tmp_path / "file").touch()
    with pytest.raises(EndxError, match="can't write .*Not a directory|can't write .*File exists"):
        Claims(tmp_path / "file")
    with Claims(tmp_path) as claims:
        monkeypatch.setattr(fcntl, "lockf", no_locks)
        with pytest.raises(EndxError, match="can't be locked \\(No locks available\\): choose a folder"), claims.of(0):
            pass


def test_a_system_without_locks_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with pytest.raises(EndxError, match="needs POSIX locks, which Windows lacks"):
        Claims(tmp_path)
