"""Outputs in buckets: written to a local path first, and then uploaded.

An object appears when its upload is complete, and an upload that is killed leaves the previous object.
"""

import contextlib
import functools
import inspect
import os
import pathlib
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import ParamSpec, TypeVar

from endx_jax.buckets import Missing, bucket_errors, fetch, filesystem, listing, matches, url_of
from endx_jax.errors import EndxError, RunInterrupted
from endx_jax.files import repeating, state_of

EVERY = 10.0  # seconds between uploads of growing files
Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")


class Mirror:
    """Local copy of a file or folder in a bucket, whose changes are uploaded.

    Files are uploaded in the order in which they were written. So a file that is written last, once others are
    complete, is the last in the bucket too.
    """

    def __init__(self, url: str, folder: pathlib.Path, skip: Sequence[str] = ()):
        """Downloads what is there.

        Args:
          url: file or folder in the bucket.
          folder: local path.
          skip: patterns of the names of files and folders that are not downloaded.
        """
        self.folder = folder
        self._url, self._lock = url, threading.Lock()
        fetch(url, listing(url, skip), folder)
        self._uploaded = self._files(["*"])

    @contextlib.contextmanager
    def uploading(self, *patterns: str) -> Iterator[None]:
        """Context in which files are uploaded every few seconds; arguments as in `upload`."""

        def upload() -> None:
            with contextlib.suppress(EndxError, RunInterrupted):  # the next `upload` of the caller raises them
                self.upload(*patterns)

        with repeating(upload, EVERY):
            yield

    def upload(self, *patterns: str) -> None:
        """Uploads files that have changed since the last call, and deletes the objects of files that were deleted.

        Args:
          *patterns: patterns of the relative paths to consider; all files without any.
        """
        files = filesystem(self._url)
        with self._lock:
            there = self._files(patterns or ["*"])
            for name in [name for name in self._uploaded if matches(name, patterns or ["*"]) and name not in there]:
                with bucket_errors(self._at(name)):
                    files.rm_file(self._at(name))
                del self._uploaded[name]
            for name, state in sorted(there.items(), key=lambda item: item[1]):
                if self._uploaded.get(name) != state:
                    with bucket_errors(self._at(name)):
                        files.put_file(str(self.folder / name), self._at(name))
                    self._uploaded[name] = state

    def _at(self, name: str) -> str:
        return f"{self._url}/{name}" if name else self._url

    def _files(self, patterns: Sequence[str]) -> dict[str, tuple[int, ...]]:
        """Returns the `state_of` each file, without temporary files, whose names begin with a dot."""
        files = {}
        for path in [self.folder] if self.folder.is_file() else self.folder.rglob("*"):
            name = "" if path == self.folder else path.relative_to(self.folder).as_posix()
            if "/." not in f"/{name}" and matches(name, patterns) and path.is_file():
                files[name] = state_of(path)
        return files


def try_writing(url: str) -> None:
    """Writes and removes an object; raises EndxError or RunInterrupted if that is not possible."""
    with bucket_errors(url):
        filesystem(url).pipe_file(f"{url}.try", b"")
    with contextlib.suppress(Missing), bucket_errors(url):  # another process may have removed it
        filesystem(url).rm_file(f"{url}.try")


_names: dict[str, str] = {}  # of the local paths in each open context of `naming`


@contextlib.contextmanager
def naming(local: pathlib.Path, name: str) -> Iterator[None]:
    """Context in which messages and errors show a URL in place of the local path of an output that is uploaded."""
    _names[str(local)] = name
    try:
        yield
    except EndxError as failure:
        failure.rename(renamed)
        raise
    finally:
        del _names[str(local)]


def renamed(line: str) -> str:
    """Returns a message with URLs in place of the local paths of `naming`."""
    for local, name in [*_names.items()]:  # other threads change it
        line = line.replace(local, name)
    return line


@contextlib.contextmanager
def uploading(path: str | os.PathLike, *, resumable: bool = False) -> Iterator[pathlib.Path]:
    """Context with a local path for an output; what was written there is uploaded at its end if `path` is in a bucket.

    Messages and errors name the URL.

    Args:
      path: file or folder, which is downloaded first if it exists in a bucket.
      resumable: true for an output that the next call completes: it is also uploaded after an error or SIGTERM.

    Raises:
      EndxError, RunInterrupted: the bucket can't be written to, which is tried first; or SIGTERM was received.
    """
    url = url_of(path)
    if url is None:
        yield pathlib.Path(path)
        return
    try_writing(url)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        local = pathlib.Path(folder) / url.rpartition("/")[2]
        mirror = Mirror(url, local)
        stack.enter_context(naming(local, url))
        if resumable:
            stack.callback(mirror.upload)
            if threading.current_thread() is threading.main_thread():
                stack.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, _interrupt))
        yield local
        if not resumable:
            mirror.upload()


def uploads(
    argument: str = "output", *, resumable: bool = False
) -> Callable[[Callable[Parameters, Returned]], Callable[Parameters, Returned]]:
    """Decorator of a function that writes a file or folder: its path may be in a bucket, see `uploading`.

    Args:
      argument: name of the argument that is the path; no path if it is empty or None.
      resumable: as of `uploading`.

    Returns:
      A decorator. A function that returns the path returns it as it was given.
    """

    def decorate(function: Callable[Parameters, Returned]) -> Callable[Parameters, Returned]:
        @functools.wraps(function)
        def call(*args: Parameters.args, **options: Parameters.kwargs) -> Returned:
            bound = inspect.signature(function).bind(*args, **options)
            path = bound.arguments.get(argument)
            if not path or not url_of(path):
                return function(*args, **options)
            with uploading(path, resumable=resumable) as local:
                bound.arguments[argument] = local
                returned = function(*bound.args, **bound.kwargs)
            return path if returned == local else returned

        return call

    return decorate


def _interrupt(*_: object) -> None:
    raise RunInterrupted("stopped by SIGTERM; run the same command to resume")
