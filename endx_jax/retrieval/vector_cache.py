"""Vectors of many texts kept on disk under the hash of all they were made from, so that they are computed once.

An entry is one `.npy` file, float32 [N, ...], with a checksum after it. It is mapped into memory and not copied there,
so it may be larger than that. An entry whose shape or checksum is wrong counts as missing and is written again.
"""

import os
import zlib
from collections.abc import Callable, Iterable
from typing import IO, cast

import numpy as np

from endx_jax.data.cache_folder import CacheFolder
from endx_jax.parallel.distributed import everywhere

CHECKSUM = np.dtype("<u4")


class VectorCache:
    """The vectors in a folder, by the key of what they were made from."""

    def __init__(self, folder: str | os.PathLike):
        """Makes nothing yet; `~` in the folder is the home directory."""
        self._folder = CacheFolder(folder)

    def vectors(self, key: str, shape: tuple[int, ...], blocks: Callable[[], Iterable[np.ndarray]]) -> np.ndarray:
        """The vectors under a key, made where there are none; of several processes, all make them or none does.

        Args:
          key: of everything that decides about them; see `data.token_cache.content_key`.
          shape: theirs, [N, ...]. An entry of another shape counts as missing.
          blocks: gives them in order, [n, ...] at a time.

        Returns:
          float32 [N, ...], mapped and not to be written to; in memory where the folder can't be written to.
        """
        name = f"vectors-{key}.npy"
        found = self._read(name, shape)
        if not everywhere(found is not None):
            self._folder.write(name, lambda stream: _write(stream, shape, blocks()))
            found = self._read(name, shape)
            if not everywhere(found is not None):
                found = np.concatenate([*blocks()])
        return cast(np.ndarray, found)

    def _read(self, name: str, shape: tuple[int, ...]) -> np.ndarray | None:
        try:
            found = np.load(self._folder.path(name), mmap_mode="r", allow_pickle=False)
            checksum = np.fromfile(self._folder.path(name), CHECKSUM, offset=found.offset + found.nbytes)
        except (OSError, ValueError, EOFError):  # missing, or shorter than it says, or no array
            return None
        sound = found.shape == shape and found.dtype == np.float32 and checksum.tolist() == [zlib.crc32(found.data)]
        return np.asarray(found) if sound else None  # NumPy's own class for files adds time to every access


def _write(stream: IO[bytes], shape: tuple[int, ...], blocks: Iterable[np.ndarray]) -> None:
    header = {"descr": np.dtype(np.float32).str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
    checksum = 0
    for block in blocks:
        values = np.ascontiguousarray(block, np.float32).data
        checksum = zlib.crc32(values, checksum)
        stream.write(values)
    stream.write(np.array(checksum, CHECKSUM).tobytes())
