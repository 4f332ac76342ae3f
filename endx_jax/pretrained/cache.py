"""Cache of pretrained folders that are converted or unpacked from other files."""

import hashlib
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Sequence

from endx_jax.errors import EndxError


def cached_folder(sources: Sequence[pathlib.Path], fill: Callable[[pathlib.Path], None]) -> pathlib.Path:
    """Returns a folder in `$XDG_CACHE_HOME/endx_jax/pretrained`, filled once for each state of its sources.

    Args:
      sources: files that the folder is made from; their sizes and modification times are the state.
      fill: function (empty folder) that writes the contents. The folder gets its name once it is complete.

    Raises:
      EndxError: the cache can't be written.
    """
    state = [(str(source.resolve()), source.stat().st_size, source.stat().st_mtime_ns) for source in sources]
    key = hashlib.sha256(repr(state).encode()).hexdigest()[:16]
    home = pathlib.Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "endx_jax" / "pretrained"
    folder = home / f"{sources[0].parent.name}-{key}"
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
