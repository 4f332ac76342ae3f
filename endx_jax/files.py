"""Writing files so that a reader sees the old contents or the new, never half of either, and one writer at a time."""

import errno
import hashlib
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from endx_jax.errors import EndxError


@contextmanager
def replacing(path: pathlib.Path, mode: str = "w") -> Iterator[IO]:
    """Opens a temporary file beside `path`; when the block ends without an error it takes the place of `path`.

    Args:
      path: what to write; missing folders are made.
      mode: `w` (UTF-8) or `wb`.

    Raises:
      EndxError: when the folder can't be written to.
    """
    path = pathlib.Path(path)
    try:
        with reporting_full_disk(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as failure:
        raise EndxError(f"can't write {path}: {failure.strerror or failure}") from None
    try:
        with reporting_full_disk(path):
            with os.fdopen(handle, mode, encoding=None if "b" in mode else "utf-8") as stream:
                yield stream
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
    except BaseException:
        pathlib.Path(temporary).unlink(missing_ok=True)
        raise


@contextmanager
def reporting_full_disk(path: pathlib.Path) -> Iterator[None]:
    """Turns a failure to write for want of space into one line: `path`, what the system said, and what to do.

    Raises:
      EndxError: when the block failed because a disk or a quota is full.
    """
    try:
        yield
    except (OSError, ValueError, RuntimeError) as failure:
        reason = None if isinstance(failure, EndxError) else _want_of_space(failure)
        if reason is None:
            raise
        raise EndxError(f"can't write {path}: {reason}; make room there, and the same command goes on") from None


def _want_of_space(failure: Exception) -> str | None:
    """What the system says of a full disk or quota, where that is the failure; libraries in C++ pass its words on."""
    for number in (errno.ENOSPC, errno.EDQUOT):
        said = os.strerror(number)
        if getattr(failure, "errno", None) == number or said in str(failure):
            return said
    return None


def write_text(path: pathlib.Path, text: str) -> None:
    """Writes a whole UTF-8 file at once."""
    with replacing(path) as stream:
        stream.write(text)


class Growing:
    """A file that is only added to; what is added is handed to the system at once, so that closing can't fail."""

    def __init__(self, path: pathlib.Path):
        """Opens it, and makes missing folders.

        Raises:
          EndxError: when the disk is full.
        """
        self._path = path
        with reporting_full_disk(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._stream = open(path, "ab", buffering=0)  # noqa: SIM115 (closed by `close`)

    def add(self, data: bytes) -> None:
        """Adds to the end.

        Raises:
          EndxError: when the disk is full; a part may have been added.
        """
        with reporting_full_disk(self._path):
            while data:
                data = data[self._stream.write(data) :]

    def close(self) -> None:
        """Closes it."""
        self._stream.close()


@contextmanager
def aside(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """Gives an empty folder beside `folder` to write into, which is gone after the block unless it was moved."""
    folder.absolute().parent.mkdir(parents=True, exist_ok=True)
    fresh = pathlib.Path(tempfile.mkdtemp(dir=folder.absolute().parent, prefix=f".{folder.name}."))
    try:
        fresh.chmod(0o755)
        yield fresh
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def put_in_place(fresh: pathlib.Path, folder: pathlib.Path) -> None:
    """Makes `fresh` be `folder`; what stands there is whole until the new one stands in its place."""
    with aside(folder) as old:
        if folder.exists():
            folder.rename(old / "replaced")
        fresh.rename(folder)


@contextmanager
def locked(folder: pathlib.Path) -> Iterator[None]:
    """Waits until no other process is in such a block with this folder; the system frees what a process leaves behind.

    Windows has no such locks: there nobody waits.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def sha256_of(file: pathlib.Path) -> str:
    """The sha256 of a file's contents, in hexadecimal."""
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
