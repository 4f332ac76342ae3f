"""Cache of pretrained folders that are converted from other files."""

import hashlib
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable

from endx_jax.errors import EndxError
from endx_jax.files import expanded


def cached_folder(source: pathlib.Path, fill: Callable[[pathlib.Path], None]) -> pathlib.Path:
    """Returns a folder in `$XDG_CACHE_HOME/endx_jax/pretrained`, filled once for each state of its source.

    Args:
      source: file that the folder is made from; its size and modification time are the state.
      fill: function (empty folder) that writes the contents. The folder gets its name once it is complete.

    Raises:
      EndxError: the cache can't be written.
    """
    state = [(str(source.resolve()), source.stat().st_size, source.stat().st_mtime_ns)]
    key = hashlib.sha256(repr(state).encode()).hexdigest()[:16]
    home = expanded("~/.cache/endx_jax/pretrained")
    folder = home / f"{source.parent.name}-{key}"
    if folder.is_dir():
        return folder
    try:
        home.mkdir(parents=True, exist_ok=True)
        aside = pathlib.Path(tempfile.mkdtemp(dir=home))
    except OSError as failure:
        raise EndxError(
            f"{home} can't be written ({failure.strerror}); set XDG_CACHE_HOME to a writable folder"
        ) from None
    try:
        fill(aside)
        os.replace(aside, folder)
    except OSError:  # another process was faster, or the disk is full
        if not folder.is_dir():
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return folder
