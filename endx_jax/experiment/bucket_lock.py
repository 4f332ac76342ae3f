"""Lock in a bucket: an object that is created only if it does not exist, and rewritten while its holder lives."""

import json
import os
import platform
import threading
import time
import uuid

from endx_jax import json_files
from endx_jax.buckets import bucket_errors, filesystem
from endx_jax.errors import EndxError, InUse, RunInterrupted
from endx_jax.parallel.console import say
from endx_jax.parallel.distributed import exit_if_distributed

EVERY = 10.0  # seconds between two writes of the object
PATIENCE = 30.0  # seconds without a write after which a lock is taken over


class BucketLock:
    """Context that holds a lock object; a process that has lost it ends.

    A process that was killed leaves the object behind. Another one waits until it has not changed for `PATIENCE`
    seconds, and takes it over. If two processes do so at once, the next write shows one of them that it has lost.
    """

    def __init__(self, url: str, advice: str):
        """Takes the URL of the object, and the end of the message if the lock is held elsewhere."""
        self._url, self._advice, self._files = url, advice, filesystem(url)
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        about = {"host": platform.node(), "process": os.getpid(), "since": since, "key": uuid.uuid4().hex}
        self._own, self._left = json.dumps(about).encode(), threading.Event()
        self._writer = threading.Thread(target=self._rewrite, daemon=True)

    def __enter__(self) -> "BucketLock":
        """Takes the lock.

        Raises:
          InUse: another process holds it.
          EndxError, RunInterrupted: the bucket can't be written to.
        """
        if not self._create():
            self._wait_for_its_end()
            with bucket_errors(self._url):
                self._files.rm_file(self._url)
            if not self._create():
                raise InUse(f"{self._url} was taken by another process: {self._advice}")
        self._writer.start()
        return self

    def __exit__(self, *failure) -> None:
        self._left.set()
        self._writer.join()
        with bucket_errors(self._url):
            if self._read()[0] == self._own:
                self._files.rm_file(self._url)

    def _create(self) -> bool:
        """Creates the object; returns false if it exists."""
        with bucket_errors(self._url):
            try:
                self._files.pipe_file(self._url, self._own, mode="create")
            except OSError:
                if not self._read()[0]:
                    raise
                return False
        return True

    def _wait_for_its_end(self) -> None:
        """Waits until the object has not changed for `PATIENCE` seconds; raises InUse if it changes."""
        with bucket_errors(self._url):
            contents, version = self._read()
            holder = _holder(contents)
            say(f"{self._url} is from {holder}: waiting {PATIENCE:.0f} s for a sign that it still runs")
            deadline = time.monotonic() + PATIENCE
            while time.monotonic() < deadline:
                time.sleep(EVERY / 10)
                if self._read()[1] not in (version, ""):
                    raise InUse(f"{self._url.rpartition('/')[0]} is in use by {holder}: {self._advice}")
        say(f"{self._url} is taken over: {holder} has ended without removing it")

    def _read(self) -> tuple[bytes, str]:
        """Returns contents and version of the object; both empty if it does not exist."""
        self._files.invalidate_cache()
        try:
            about = self._files.info(self._url)
            return self._files.cat_file(self._url), str(about.get("generation") or about.get("LastModified"))
        except FileNotFoundError:
            return b"", ""

    def _rewrite(self) -> None:
        """Rewrites the object from time to time; ends the process if another one has taken it."""
        while not self._left.wait(EVERY):
            try:
                with bucket_errors(self._url):
                    contents, _ = self._read()
                    if contents == self._own:
                        self._files.pipe_file(self._url, self._own)
                        continue
            except (EndxError, RunInterrupted):
                continue  # uploads report it
            message = f"{self._url} was taken over by {_holder(contents)}: this process ends"
            os.write(2, f"endx_jax: {message}\n".encode())
            exit_if_distributed(2, message)
            os._exit(2)


def _holder(contents: bytes) -> str:
    """Describes the holder by the contents of a lock."""
    try:
        about = json_files.parse(contents, "lock", dict)
        holder = f"process {about['process']} on {about['host']} since {about['since']}"
    except (EndxError, KeyError):
        holder = ""
    return holder if holder.isprintable() and 0 < len(holder) < 200 else "another process"
