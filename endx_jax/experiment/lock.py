"""One run at a time in a workdir: a lock that the system frees when its holder dies."""

import errno
import json
import os
import pathlib
import platform
import shutil
import time

from endx_jax.errors import EndxError
from endx_jax.experiment.console import say
from endx_jax.parallel import heartbeats
from endx_jax.parallel.distributed import is_primary, on_primary

FILE = ".lock"


class RunLock:
    """Holds a workdir while it is entered; with several processes, the first one holds it for all.

    It is an advisory lock (`fcntl`) on a file that says who holds it, and that stays. It holds between machines where
    the file system shares such locks, as NFS does; where there are none, one line says so and the run goes on. It is
    the process's: two runs in one process are not told apart.
    """

    def __init__(self, workdir: pathlib.Path):
        """Of a workdir, which is made when the lock is taken."""
        self._workdir = workdir

    def __enter__(self) -> "RunLock":
        """Takes the lock, without waiting.

        Raises:
          EndxError: another run holds it; the line names its host, process and start.
        """
        on_primary(self._take, "workdir-locked")
        return self

    def __exit__(self, *failure) -> None:
        if not is_primary():
            return
        # A folder in which nothing else was written, as after a mistake in the settings, is taken back.
        if self._made and {entry.name for entry in self._workdir.iterdir()} <= {FILE, heartbeats.FOLDER}:
            shutil.rmtree(self._workdir)
        os.close(self._file)

    def _take(self) -> None:
        path = self._workdir / FILE
        self._made = not self._workdir.exists()
        try:
            self._workdir.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as failure:
            raise EndxError(
                f"{self._workdir} can't be written ({failure.strerror}); choose another with --workdir"
            ) from None
        try:
            import fcntl

            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:
            say(f"note: Windows has no locks that would keep a second run out of {self._workdir}")
        except OSError as failure:
            if failure.errno in (errno.EACCES, errno.EAGAIN):
                os.close(self._file)
                raise EndxError(
                    f"{self._workdir} is in use by {_holder(path)}: wait for it, stop it or choose another --workdir"
                ) from None
            say(f"note: {path} can't be locked ({failure.strerror}): nothing keeps a second run out of the workdir")
        self._sign()

    def _sign(self) -> None:
        """Says in the file who holds it."""
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        os.ftruncate(self._file, 0)
        os.write(self._file, json.dumps({"host": platform.node(), "process": os.getpid(), "since": since}).encode())


def _holder(path: pathlib.Path) -> str:
    """Who wrote a lock file, in words."""
    try:
        found = json.loads(path.read_text())
        return f"process {found['process']} on {found['host']} since {found['since']}"
    except (OSError, ValueError, KeyError):
        return "another run, which has only just begun"
