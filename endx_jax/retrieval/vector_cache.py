"""Vectors of many texts, computed once and cached on disk under the hash of their inputs.

An entry is one `.npy` file, float32 [N, ...], followed by a checksum. It is memory-mapped, so it may be larger than
memory. An entry with a wrong shape or checksum counts as missing and is written again.
"""

import dataclasses
import os
import pathlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, cast

import numpy as np

from endx_jax.data.token_tables import content_key
from endx_jax.files import CacheFolder
from endx_jax.inference.encode import TextEncoder
from endx_jax.inference.identity import model_identity
from endx_jax.models.dual_encoder import SIDES
from endx_jax.parallel.distributed import all_processes

CHECKSUM = np.dtype("<u4")


class VectorCache:
    """Cache of vectors in a folder, by the hash of their inputs."""

    def __init__(self, folder: str | os.PathLike = ""):
        """Stores the folder, in which `~` is the home directory, or "" to cache nothing; creates nothing yet."""
        self._folder = CacheFolder(folder) if folder else None

    def vectors(self, key: str, shape: tuple[int, ...], blocks: Callable[[], Iterable[np.ndarray]]) -> np.ndarray:
        """Returns the vectors of a key, computing them if missing; of several processes, all compute them or none.

        Args:
          key: hash of all inputs; see `data.token_tables.content_key`.
          shape: [N, ...]; an entry of another shape counts as missing.
          blocks: computes the vectors in order, [n, ...] at a time.

        Returns:
          float32 [N, ...], memory-mapped and read-only; in memory if the folder can't be written.
        """
        if self._folder is None:
            return np.concatenate([*blocks()])
        name = f"vectors-{key}.npy"
        file = self._folder.path(name)
        found = _read(file, shape)
        if not all_processes(found is not None):
            self._folder.write(name, lambda stream: _write(stream, shape, blocks()))
            found = _read(file, shape)
            if not all_processes(found is not None):
                found = np.concatenate([*blocks()])
        return cast(np.ndarray, found)


def _read(file: pathlib.Path, shape: tuple[int, ...]) -> np.ndarray | None:
    try:
        found = np.load(file, mmap_mode="r", allow_pickle=False)
        checksum = np.fromfile(file, CHECKSUM, offset=found.offset + found.nbytes)
    except (OSError, ValueError, EOFError):  # missing, truncated, or not an array
        return None
    sound = found.shape == shape and found.dtype == np.float32 and checksum.tolist() == [zlib.crc32(found.data)]
    return np.asarray(found) if sound else None  # np.memmap slows down every access


def _write(stream: IO[bytes], shape: tuple[int, ...], blocks: Iterable[np.ndarray]) -> None:
    header = {"descr": np.dtype(np.float32).str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
    checksum = 0
    for block in blocks:
        values = np.ascontiguousarray(block, np.float32).data
        checksum = zlib.crc32(values, checksum)
        stream.write(values)
    stream.write(np.array(checksum, CHECKSUM).tobytes())


# Texts encoded at a time, which bounds the memory of vectors that are cached on disk.
BLOCK = 1 << 14


def base_vectors(
    encoder: TextEncoder, params: dict, side: str, texts: Sequence[str], cache: VectorCache, *, progress: bool = False
) -> np.ndarray:
    """Computes the input of the head of one side's tower for N texts: see `Tower.base`.

    Args:
      encoder: encoder with `part=model.base`.
      params: parameters; those of heads have no effect.
      side: `question` or `answer`.
      texts: N texts.
      cache: cache of the vectors.
      progress: show a progress bar.

    Returns:
      float32 [N, E], memory-mapped if cached.
    """
    key = content_key(texts, "base", side, base_identity(encoder, params))
    return encode_once(encoder, params, side, texts, key, cache, (encoder.width(params),), progress=progress)


def base_identity(encoder: TextEncoder, params: dict) -> str:
    """Returns a hash of the model below the heads (`model_identity`), and the dtypes of the computation."""
    model = encoder.model
    question, answer = (model.tower(side).clone(head=None) for side in SIDES)
    dtypes = [str(model.tower(side).token_embedder.dtype) for side in SIDES]
    below = dataclasses.replace(model, question=question, answer=answer)
    identity = model_identity(below, below_heads(params), encoder.processors)
    return " ".join([identity, *dtypes])


def below_heads(dual_encoder: dict) -> dict:
    """Returns a dual encoder's parameters without those of its heads."""
    kept = {place: {g: p for g, p in groups.items() if g != "head"} for place, groups in dual_encoder.items()}
    return {place: groups for place, groups in kept.items() if groups}


def encode_once(
    encoder: TextEncoder,
    params: dict,
    side: str,
    texts: Sequence[str],
    key: str,
    cache: VectorCache,
    shape: tuple[int, ...],
    *,
    progress: bool = False,
) -> np.ndarray:
    """Encodes N texts to [N, *shape], or reads them from the cache by their key."""

    def blocks() -> Iterator[np.ndarray]:
        for start in range(0, max(1, len(texts)), BLOCK):
            yield encoder(params, side, texts[start : start + BLOCK], progress=progress)

    return cache.vectors(key, (len(texts), *shape), blocks)
