"""A folder of files that save time and can be made again: whatever is wrong with it, a run goes on without."""

import os
import pathlib
import warnings
from collections.abc import Callable
from typing import IO

from endx_jax.errors import EndxError
from endx_jax.files import replacing


class CacheFolder:
    """Where files are written aside and renamed, so that any number of processes may write the same one."""

    def __init__(self, folder: str | os.PathLike):
        """Makes nothing yet; `~` in the folder is the home directory."""
        self.folder = pathlib.Path(folder).expanduser()
        self._writable = True

    def path(self, name: str) -> pathlib.Path:
        """Where a file is, if it is there."""
        return self.folder / name

    def write(self, name: str, fill: Callable[[IO[bytes]], object]) -> None:
        """Writes a file by `fill`; where the folder or its disk does not let it, warns, and tries no more."""
        if not self._writable:
            return
        try:
            with replacing(self.path(name), "wb") as stream:
                fill(stream)
        except (OSError, EndxError) as failure:
            self._writable = False
            warnings.warn(
                f"nothing is kept for a faster start of the next run: {failure}; set data.cache to a folder that can "
                "be written to, or to nothing",
                stacklevel=2,
            )
