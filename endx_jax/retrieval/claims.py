"""Who does what among processes that share a folder: locks that the system frees when their holder dies."""

import errno
import os
import pathlib
from collections.abc import Iterator
from contextlib import contextmanager

from endx_jax.errors import EndxError

LOCK_FILE = ".claims"


class Claims:
    """Numbered claims on parts of a folder, each held by one process at most.

    They are advisory locks (`fcntl`) on single bytes of one file, so nothing is left to clear up after a process that
    was killed, and they hold between machines where the file system shares them, as NFS does. They are the process's:
    between threads of one they settle nothing, and a process should open a folder's claims once.
    """

    def __init__(self, folder: pathlib.Path):
        """Opens the claims of a folder, which is made where it is missing.

        Raises:
          EndxError: the folder can't be written, or the system has no such locks.
        """
        try:
            import fcntl
        except ImportError:
            raise EndxError("encoding a corpus needs POSIX locks, which Windows lacks: run it under WSL") from None
        self._fcntl = fcntl
        self._path = folder / LOCK_FILE
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as failure:
            raise EndxError(f"can't write {self._path}: {failure.strerror}") from None

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        os.close(self._file)

    @contextmanager
    def of(self, number: int) -> Iterator[bool]:
        """Claims part `number`, from 0, at once; gives whether it is this process's until the block ends."""
        mine = self._lock(self._fcntl.LOCK_EX | self._fcntl.LOCK_NB, 1 + number)
        try:
            yield mine
        finally:
            if mine:
                self._fcntl.lockf(self._file, self._fcntl.LOCK_UN, 1, 1 + number)

    @contextmanager
    def of_all(self) -> Iterator[None]:
        """Claims what concerns the folder as a whole, and waits while another process does; parts stay free."""
        self._lock(self._fcntl.LOCK_EX, 0)
        try:
            yield
        finally:
            self._fcntl.lockf(self._file, self._fcntl.LOCK_UN, 1, 0)

    def _lock(self, how: int, byte: int) -> bool:
        try:
            self._fcntl.lockf(self._file, how, 1, byte)
        except OSError as failure:
            if failure.errno in (errno.EACCES, errno.EAGAIN):
                return False
            raise EndxError(
                f"{self._path} can't be locked ({failure.strerror}): choose a folder on a file system with POSIX locks"
            ) from None
        return True
