"""Vectors of many texts, computed once and cached on disk under the hash of their inputs.

An entry is one `.npy` file, float32 [N, E], followed by a checksum. It is memory-mapped, so it may be larger than
memory. An entry with a wrong shape or checksum counts as missing and is written again.
"""

import os
import pathlib
import tokenize
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, cast

import numpy as np

from endx_jax.data.batches.token_tables import content_key
from endx_jax.errors import EndxError
from endx_jax.files import cache_folder, write_cache
from endx_jax.parallel.agreement import all_gather

CHECKSUM = np.dtype("<u4")
BLOCK = 1 << 14  # texts encoded at a time, which bounds the memory of vectors that are cached on disk


class VectorCache:
    """Cache of vectors in a folder, by the hash of their inputs."""

    def __init__(self, folder: str | os.PathLike = ""):
        """Stores the folder, in which `~` is the home directory, or "" to cache nothing; creates nothing yet."""
        self._folder = cache_folder(folder) if folder else None

    def embeddings(
        self,
        encode: Callable[[Sequence[str]], np.ndarray],
        texts: Sequence[str],
        about: tuple[str, ...],
        width: int,
        *,
        name: str,
    ) -> np.ndarray:
        """Returns the embeddings of N texts, computed if they are missing; of several processes, all do or none.

        Args:
          encode: function from n texts to their embeddings [n, E].
          texts: N texts.
          about: everything else that determines the embeddings: their kind, the side and the identity of the model.
          width: E; an entry of another width counts as missing.
          name: name of the model in errors.

        Returns:
          float32 [N, E], memory-mapped and read-only; in memory if the folder can't be written.

        Raises:
          EndxError: an embedding is not finite.
        """

        def blocks() -> Iterator[np.ndarray]:
            for start in range(0, max(1, len(texts)), BLOCK):
                block = encode(texts[start : start + BLOCK])
                if not np.isfinite(block).all():
                    row = start + int((~np.isfinite(block)).any(axis=1).argmax())
                    text = f"for the text {texts[row][:60]!r}"
                    raise EndxError(f"{name} gives an embedding that is not finite {text}: use another model")
                yield block

        if self._folder is None:
            return np.concatenate([*blocks()])
        file, shape = self._folder / f"vectors-{content_key(texts, *about)}.npy", (len(texts), width)
        vectors = _read(file, shape)
        if not all(all_gather(vectors is not None, "cached")):
            computed = blocks()
            write_cache(file, lambda stream: _write(stream, shape, computed))
            rest = [*computed]  # of several processes, those that can't write take part too
            vectors = _read(file, shape)
            if vectors is None and sum(map(len, rest)) == len(texts):
                vectors = np.concatenate(rest)
            if not all(all_gather(vectors is not None, "cached")):
                vectors = np.concatenate([*blocks()])
        return cast(np.ndarray, vectors)


def _read(file: pathlib.Path, shape: tuple[int, ...]) -> np.ndarray | None:
    try:
        vectors = np.load(file, mmap_mode="r", allow_pickle=False)
        checksum = np.fromfile(file, CHECKSUM, offset=vectors.offset + vectors.nbytes)
    except (OSError, ValueError, EOFError, tokenize.TokenError):  # missing, truncated, or not an array
        return None
    sound = vectors.shape == shape and vectors.dtype == np.float32 and checksum.tolist() == [zlib.crc32(vectors.data)]
    return np.asarray(vectors) if sound else None  # np.memmap slows down every access


def _write(stream: IO[bytes], shape: tuple[int, ...], blocks: Iterable[np.ndarray]) -> None:
    header = {"descr": np.dtype(np.float32).str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
    checksum = 0
    for block in blocks:
        values = np.ascontiguousarray(block, np.float32).data
        checksum = zlib.crc32(values, checksum)
        stream.write(values)
    stream.write(np.array(checksum, CHECKSUM).tobytes())
