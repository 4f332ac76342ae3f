"""Atomic replacement of files and folders, lock files, and caches."""

import contextlib
import errno
import glob
import hashlib
import json
import logging
import os
import pathlib
import platform
import re
import shutil
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

import filelock

from endx_jax import json_files
from endx_jax.errors import DiskFull, EndxError, InUse, NotWritable

REPLACED = "replaced"  # name of an old folder while a new one replaces it


@contextmanager
def replacing(path: pathlib.Path, mode: str = "w") -> Iterator[IO]:
    """Context that yields a temporary file, which atomically replaces `path` unless the block raises an error.

    Args:
      path: file to write; missing folders are created. A device, a pipe, and what is in /dev, such as a link to
        standard output, is not replaced, but written to directly.
      mode: `w` (UTF-8) or `wb`.

    Raises:
      NotWritable: the path is a folder, its folder can't be written to, or the disk is full.
    """
    path = pathlib.Path(path)
    if path.is_dir():
        raise NotWritable(f"can't write {path}: it is a folder; name a file")
    temporary = None
    try:
        with reporting_full_disk(path):
            if path.exists() and (not path.is_file() or path.parent == pathlib.Path("/dev")):
                # If one of these is redirected to a file, opening it again would overwrite the file's beginning.
                number = {"/dev/stdout": 1, "/dev/stderr": 2}.get(str(path))
                if number:
                    sys.stdout.flush()  # what was printed precedes it
                handle = os.dup(number) if number else os.open(path, os.O_WRONLY)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as failure:
        raise NotWritable(f"can't write {path}: {failure.strerror or failure}") from None
    try:
        with reporting_full_disk(path):
            with os.fdopen(handle, mode, encoding=None if "b" in mode else "utf-8") as stream:
                yield stream
            if temporary:
                os.chmod(temporary, 0o644)
                os.replace(temporary, path)
    except BaseException:
        if temporary:
            pathlib.Path(temporary).unlink(missing_ok=True)
        raise


@contextmanager
def reporting_full_disk(path: str | os.PathLike) -> Iterator[None]:
    """Context that converts errors about a full disk or quota to `DiskFull` errors about `path`.

    Raises:
      DiskFull: the block failed because a disk or quota is full.
    """
    try:
        yield
    except (OSError, ValueError, RuntimeError) as failure:
        reason = None if isinstance(failure, EndxError) else _full_disk_message(failure)
        if reason is None:
            raise
        raise DiskFull(f"can't write {path}: {reason}; free some space and run the same command to resume") from None


def _full_disk_message(failure: Exception) -> str | None:
    """Returns the system's message if a failure is about a full disk or quota; C++ errors only contain the message."""
    for number in (errno.ENOSPC, errno.EDQUOT):
        message = os.strerror(number)
        if getattr(failure, "errno", None) == number or message in str(failure):
            return message
    return None


def write_text(path: pathlib.Path, text: str) -> None:
    """Atomically writes a UTF-8 file."""
    with replacing(path) as stream:
        stream.write(text)


class AppendOnlyFile:
    """Unbuffered file that is only appended to, so that closing it can't fail."""

    def __init__(self, path: pathlib.Path):
        """Opens the file and creates missing folders."""
        self._path = path
        with reporting_full_disk(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._stream = open(path, "ab", buffering=0)  # noqa: SIM115 (closed by `close`)

    def add(self, data: bytes, *, sync: bool = False) -> None:
        """Appends data; with `sync`, waits until it is on disk. If that fails, none of the data remains."""
        size = os.fstat(self._stream.fileno()).st_size
        with reporting_full_disk(self._path):
            try:
                while data:
                    data = data[self._stream.write(data) :]
                if sync:
                    os.fsync(self._stream.fileno())
            except BaseException:
                with contextlib.suppress(OSError):  # devices can't be truncated
                    self._stream.truncate(size)
                raise

    def close(self) -> None:
        """Closes the file."""
        self._stream.close()


def check_replaceable(folder: pathlib.Path) -> None:
    """Raises EndxError if the path of a folder does not end with the folder's name, such as `.`."""
    if folder.name in ("", ".."):
        raise EndxError(f"can't replace the folder {folder} as a whole: name a folder in it, such as {folder / 'out'}")


@contextmanager
def staging_folder(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """Context that yields an empty temporary folder next to `folder`; removes it at its end unless it was moved.

    It first removes temporary folders of killed processes, and restores `folder` if one was killed in `replace_folder`.

    Raises:
      EndxError: as `check_replaceable`.
    """
    check_replaceable(folder)
    parent, prefix = folder.absolute().parent, f".{folder.name}.unfinished-"
    parent.mkdir(parents=True, exist_ok=True)
    for stale in parent.glob(f"{glob.escape(prefix)}*"):
        with _try_lock(stale) as acquired:
            if acquired and (stale / REPLACED).exists() and not os.path.lexists(folder):
                (stale / REPLACED).rename(folder)
            if acquired:
                shutil.rmtree(stale, ignore_errors=True)
    with contextlib.ExitStack() as stack:
        while True:
            fresh = pathlib.Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
            held = stack.enter_context(_try_lock(fresh))
            # Before it is locked, another process may take it for that of a killed process, and remove it.
            if held is not False and fresh.exists():
                break
        try:
            fresh.chmod(0o755)
            yield fresh
        finally:
            shutil.rmtree(fresh, ignore_errors=True)


def replace_folder(fresh: pathlib.Path, folder: pathlib.Path) -> None:
    """Replaces `folder` by `fresh` and removes the old folder.

    If the process is killed between the two renames, `folder` is missing until the next `staging_folder` restores it.
    """
    with staging_folder(folder) as old:
        if os.path.lexists(folder):
            folder.rename(old / REPLACED)
        try:
            fresh.rename(folder)
        except BaseException:
            if os.path.lexists(old / REPLACED):
                (old / REPLACED).rename(folder)
            raise


@contextmanager
def _try_lock(folder: pathlib.Path) -> Iterator[bool | None]:
    """Context in which a folder is locked; yields false if another process has locked it, None without locks."""
    with contextlib.ExitStack() as stack:
        acquired: bool | None = True
        try:
            import fcntl

            handle = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, handle)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            acquired = False
        except (ImportError, OSError):
            acquired = None
        yield acquired


@contextmanager
def repeating(action: Callable[[], object], seconds: float) -> Iterator[None]:
    """Context in which a thread calls `action` every so many seconds."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(seconds):
            action()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def locked(path: pathlib.Path, *, advice: str = "wait for it or stop it", waits: bool = False) -> Iterator[str | None]:
    """Context that takes an exclusive lock on a lock file.

    The lock is advisory (`flock`), and the system releases it when the process ends. It applies between machines if the
    file system supports that, as NFS does. The file contains the name of its holder and is not removed.

    Args:
      path: lock file, in an existing folder.
      advice: end of the error message if the lock is held elsewhere.
      waits: true to wait until the lock is free, with a line that says so, and not to raise InUse.

    Yields:
      None if the lock is held; if the system can't lock files, the reason, and the block runs without a lock.

    Raises:
      InUse: another context or process holds the lock.
      EndxError: the file can't be written, or is a symbolic link.
    """
    # With `on_acquired`, FileLock never falls back to a lock file that a killed process would leave behind.
    lock = filelock.FileLock(path, 0.0, mode=0o644, thread_local=False, on_acquired=_sign)
    reason = None
    try:
        try:
            lock.acquire()
        except filelock.Timeout:
            message = f"{path.parent} is in use by {_holder(path)}"
            if not waits:
                raise InUse(f"{message}: {advice}") from None
            logging.getLogger(__name__).warning("%s: waiting for it", message)
            lock.acquire(timeout=-1)
    except OSError as failure:
        if failure.filename is not None:  # opening the file failed, not locking it
            link = "it is a symbolic link; remove it"
            raise EndxError(
                f"can't write {path}: {link if failure.errno == errno.ELOOP else failure.strerror}"
            ) from None
        reason = failure.strerror
    try:
        yield reason
    finally:
        lock.release()


def signature(**more: str) -> bytes:
    """Returns the contents of a lock, which name this process."""
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    return json.dumps({"host": platform.node(), "process": os.getpid(), "since": since, **more}).encode()


def holder_of(contents: bytes, unknown: str = "another process") -> str:
    """Describes the holder of a lock by its contents; returns `unknown` if they don't name it."""
    try:
        about = json_files.parse(contents, "lock", dict)
        holder = f"process {about['process']} on {about['host']} since {about['since']}"
    except (EndxError, KeyError):
        return unknown
    return holder if holder.isprintable() and len(holder) < 200 else unknown


def _sign(handle: int) -> None:
    """Writes the name of this process into the open lock file, if there is space for it."""
    with contextlib.suppress(OSError):
        os.ftruncate(handle, 0)
        os.write(handle, signature())


def _holder(path: pathlib.Path) -> str:
    """Describes the holder of a lock file; the process in the file may have ended without the current holder's name."""
    unknown = f"another process (`fuser {path}` names it)"
    try:
        contents = path.read_bytes()
        about = json_files.parse(contents, str(path), dict)
        if about.get("host") == platform.node():
            with contextlib.suppress(PermissionError):  # another user's process
                os.kill(int(str(about.get("process"))), 0)
    except (OSError, EndxError, ValueError, OverflowError):
        return unknown
    return holder_of(contents, unknown)


def sha256_of(file: pathlib.Path) -> str:
    """Returns the hexadecimal sha256 of a file."""
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def state_of(file: pathlib.Path) -> tuple[int, ...]:
    """Returns modification time, change time, size and inode, of which one differs once a file has other contents."""
    about = file.stat()  # copying and unpacking set the modification time; nothing sets the change time
    return about.st_mtime_ns, about.st_ctime_ns, about.st_size, about.st_ino


def expanded(path: str | os.PathLike, instead: str = "name another path") -> pathlib.Path:
    """Expands `~` in a path, and `~/.cache` to `$XDG_CACHE_HOME` if set; raises EndxError if no home is known."""
    path = json_files.as_path(path)
    if home := os.environ.get("XDG_CACHE_HOME"):
        path = re.sub(r"^~/\.cache(?=/|$)", lambda _: home, path)
    try:
        return pathlib.Path(path).expanduser()
    except RuntimeError:  # neither HOME nor a line in /etc/passwd
        raise EndxError(f"{path}: no home folder is known: set HOME or XDG_CACHE_HOME, or {instead}") from None


def last_name(path: str | os.PathLike) -> str:
    """Returns the name of a file or folder, also if its path ends with `.` or `..`."""
    return os.path.basename(os.path.abspath(path))


def cache_folder(folder: str | os.PathLike) -> pathlib.Path:
    """Expands the path of a cache folder; returns `os.devnull`, which holds no files, if no home folder is known."""
    try:
        return expanded(folder)
    except EndxError:
        return pathlib.Path(os.devnull)


def write_cache(file: pathlib.Path, fill: Callable[[IO[bytes]], object]) -> None:
    """Writes a cache file with `fill`; warns if it can't be written."""
    try:
        with replacing(file, "wb") as stream:
            fill(stream)
    except (OSError, NotWritable) as failure:
        advice = "set data.cache to a writable folder or leave it empty"
        warnings.warn(f"nothing is cached for the next run: {failure}; {advice}", stacklevel=2)
