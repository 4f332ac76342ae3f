"""Atomic replacement of files and folders, and locks on them."""

import contextlib
import errno
import glob
import hashlib
import json
import os
import pathlib
import platform
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

from endx_jax import json_files
from endx_jax.errors import DiskFull, EndxError, InUse

# Name of a folder that was moved out of its place.
REPLACED = "replaced"

# Flags that open a lock file. The target of a symbolic link would be overwritten.
OPEN_LOCK = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)


@contextmanager
def replacing(path: pathlib.Path, mode: str = "w") -> Iterator[IO]:
    """Opens a temporary file beside `path`, which replaces `path` when the block ends without an error.

    Args:
      path: the file to write; missing folders are created.
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
    """Converts failures to write because of a full disk into a DiskFull error that names `path`.

    Raises:
      DiskFull: the block failed because a disk or a quota is full.
    """
    try:
        yield
    except (OSError, ValueError, RuntimeError) as failure:
        reason = None if isinstance(failure, EndxError) else _want_of_space(failure)
        if reason is None:
            raise
        raise DiskFull(f"can't write {path}: {reason}; make room there, and the same command resumes") from None


def _want_of_space(failure: Exception) -> str | None:
    """Returns the system's message if a failure is a full disk or quota; C++ libraries pass that message on."""
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
    """File to append to, unbuffered, so that closing it can't fail."""

    def __init__(self, path: pathlib.Path):
        """Opens the file and creates missing folders.

        Raises:
          EndxError: when the disk is full.
        """
        self._path = path
        with reporting_full_disk(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._stream = open(path, "ab", buffering=0)  # noqa: SIM115 (closed by `close`)

    def add(self, data: bytes) -> None:
        """Appends to the file.

        Raises:
          EndxError: when the disk is full; a part may have been added.
        """
        with reporting_full_disk(self._path):
            while data:
                data = data[self._stream.write(data) :]

    def close(self) -> None:
        """Closes the file."""
        self._stream.close()


@contextmanager
def aside(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields an empty temporary folder beside `folder`, which is removed after the block unless it was moved.

    Temporary folders of killed processes are removed first; a folder that they were replacing is restored.
    """
    home, prefix = folder.absolute().parent, f".{folder.name}.unfinished-"
    home.mkdir(parents=True, exist_ok=True)
    for left in home.glob(f"{glob.escape(prefix)}*"):
        with _marked(left) as mine:
            if mine and (left / REPLACED).exists() and not os.path.lexists(folder):
                (left / REPLACED).rename(folder)
            if mine:
                shutil.rmtree(left, ignore_errors=True)
    fresh = pathlib.Path(tempfile.mkdtemp(dir=home, prefix=prefix))
    try:
        with _marked(fresh):
            fresh.chmod(0o755)
            yield fresh
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def put_in_place(fresh: pathlib.Path, folder: pathlib.Path) -> None:
    """Renames `fresh` to `folder`, and removes the folder that was there.

    If the process is killed between the two renames, the next `aside` restores the old folder.
    """
    with aside(folder) as old:
        if os.path.lexists(folder):
            folder.rename(old / REPLACED)
        try:
            fresh.rename(folder)
        except BaseException:
            if os.path.lexists(old / REPLACED):
                (old / REPLACED).rename(folder)
            raise


@contextmanager
def _marked(folder: pathlib.Path) -> Iterator[bool]:
    """Marks a folder as in use while the block runs; yields true if no living process had marked it."""
    with contextlib.ExitStack() as stack:
        try:
            import fcntl

            handle = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, handle)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            mine = True
        except (ImportError, OSError):
            mine = False
        yield mine


@contextmanager
def locked(path: pathlib.Path, *, wait: float = 0.0, advice: str = "wait for it or stop it") -> Iterator[str | None]:
    """Holds an exclusive lock on a file while the block runs.

    The lock is advisory (`flock`), and the system releases it when its holder dies. It works between machines if the
    file system supports such locks, as NFS does. The file names its holder, and is not removed.

    Args:
      path: the lock file, in a folder that exists.
      wait: seconds to wait for another holder.
      advice: ends the message about another holder.

    Yields:
      None, or the reason why the system can't lock the file; the block then runs without a lock.

    Raises:
      InUse: another block still holds the lock.
      EndxError: the file can't be written, or is a symbolic link, whose target would be overwritten.
    """
    try:
        handle = os.open(path, OPEN_LOCK, 0o644)
    except OSError as failure:
        raise EndxError(f"can't write {path}: {refusal_to_open(failure)}") from None
    taken, reason = True, None
    try:
        try:
            import fcntl

            taken = poll(lambda: fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB), wait)
        except ImportError:
            reason = "Windows has no such locks"
        except OSError as failure:
            reason = failure.strerror
        if not taken:
            raise InUse(f"{path.parent} is in use by {_holder(path)}: {advice}")
        with contextlib.suppress(OSError):  # such as a full disk: the lock holds without a name
            _sign(handle)
        yield reason
    finally:
        os.close(handle)


def poll(lock: Callable[[], object], seconds: float) -> bool:
    """Calls the non-blocking `lock` until it returns true or the seconds have passed; returns its last result."""
    end = time.monotonic() + seconds
    while True:
        try:
            lock()
            return True
        except OSError as failure:
            if failure.errno not in (errno.EACCES, errno.EAGAIN):
                raise
        if time.monotonic() >= end:
            return False
        time.sleep(0.02)


def refusal_to_open(failure: OSError) -> str | None:
    """Returns the reason why a file was not opened with `OPEN_LOCK`."""
    return "it is a symbolic link; remove it" if failure.errno == errno.ELOOP else failure.strerror


def _sign(handle: int) -> None:
    """Writes the holder of a lock into its file."""
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    os.ftruncate(handle, 0)
    os.write(handle, json.dumps({"host": platform.node(), "process": os.getpid(), "since": since}).encode())


def _holder(path: pathlib.Path) -> str:
    """Returns a description of the process that signed a lock file, or a general one if that process has ended."""
    unknown = f"another process (`fuser {path}` names it)"
    try:
        signed = json_files.read(path)
        host, process, since = (json_files.value(signed, key, str(path)) for key in ("host", "process", "since"))
        if host == platform.node():
            with contextlib.suppress(PermissionError):  # another user's process
                os.kill(int(str(process)), 0)
    except (EndxError, ValueError, OverflowError, ProcessLookupError):
        return unknown
    words = f"process {process} on {host} since {since}"
    return words if words.isprintable() and len(words) < 200 else unknown


def sha256_of(file: pathlib.Path) -> str:
    """Returns the sha256 of a file's contents, in hexadecimal."""
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


class CacheFolder:
    """Folder of cache files that any number of processes may write; if it is not writable, nothing is cached."""

    def __init__(self, folder: str | os.PathLike):
        """Sets the folder, which is created by the first write; `~` in it is the home directory."""
        self.folder = pathlib.Path(folder).expanduser()
        self._writable = True

    def path(self, name: str) -> pathlib.Path:
        """Returns the path of a file, which may not exist."""
        return self.folder / name

    def write(self, name: str, fill: Callable[[IO[bytes]], object]) -> None:
        """Writes a file with `fill`. If that fails, warns and writes no further files."""
        if not self._writable:
            return
        try:
            with replacing(self.path(name), "wb") as stream:
                fill(stream)
        except (OSError, EndxError) as failure:
            self._writable = False
            warnings.warn(
                f"nothing is cached for the next run: {failure}; set data.cache to a writable folder, or to nothing",
                stacklevel=2,
            )
