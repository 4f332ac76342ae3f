"""Lock against a second run in a workdir."""

import contextlib
import pathlib
import shutil

from endx_jax.errors import EndxError
from endx_jax.files import locked
from endx_jax.parallel.console import say
from endx_jax.parallel.distributed import is_primary, on_primary

FILE = ".lock"


class RunLock:
    """Context that holds the lock file of a workdir (see `files.locked`), in the primary process.

    If the file system has no locks, a line says so and the run continues.
    """

    def __init__(self, workdir: pathlib.Path):
        """Takes the workdir, which is created when the lock is taken."""
        self._workdir = workdir
        self._held = contextlib.ExitStack()

    def __enter__(self) -> "RunLock":
        """Takes the lock, without waiting.

        Raises:
          EndxError: another run holds it (the line names its host, process and start), or the folder can't be written.
        """
        on_primary(self._take, "workdir-locked")
        return self

    def __exit__(self, *failure) -> None:
        if not is_primary():
            return
        # A folder in which nothing else was written, as after a mistake in the settings, is removed again.
        if self._made and {entry.name for entry in self._workdir.iterdir()} == {FILE}:
            shutil.rmtree(self._workdir)
        self._held.close()

    def _take(self) -> None:
        self._made = not self._workdir.exists()
        try:
            self._workdir.mkdir(parents=True, exist_ok=True)
        except OSError as failure:
            raise EndxError(
                f"{self._workdir} can't be written ({failure.strerror}); choose another with --workdir"
            ) from None
        advice = "wait for it, stop it or choose another --workdir"
        reason = self._held.enter_context(locked(self._workdir / FILE, advice=advice))
        if reason:
            say(f"note: {self._workdir / FILE} can't be locked ({reason}): nothing keeps a second run out")
