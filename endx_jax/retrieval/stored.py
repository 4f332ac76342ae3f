"""Shards as they are read: embeddings stay in their files until they are asked for, and so do documents."""

import bisect
import functools
import json
import mmap
import pathlib
import re
from collections.abc import Iterator, Sequence

import numpy as np

from endx_jax.data.documents import Document
from endx_jax.errors import EndxError
from endx_jax.retrieval.quantize import Quantized
from endx_jax.retrieval.shards import Manifest, Shard, shard_files


class StoredDocuments:
    """The documents of a shard, each read when it is asked for.

    The file stays open, so that they can be read after it is deleted.
    """

    def __init__(self, path: pathlib.Path, count: int):
        """Opens `path`, which should hold `count` documents."""
        self._path, self._count = path, count
        with open(path, "rb") as stream:
            self._bytes = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Document]:
        return map(self.__getitem__, range(self._count))

    def __getitem__(self, row: int) -> Document:
        """The document of a row, from 0."""
        try:
            return Document(**json.loads(self._bytes[self._ends[row] : self._ends[row + 1]]))
        except (ValueError, TypeError) as failure:
            raise EndxError(f"{self._path}, line {row + 1}, can't be read as a document: {failure}") from None

    @functools.cached_property
    def _ends(self) -> np.ndarray:
        """Where lines end, before them a 0; found when a document is first asked for."""
        ends = np.fromiter((found.end() for found in re.finditer(b"\n", self._bytes)), np.int64)
        if len(ends) != self._count or (len(ends) and ends[-1] != len(self._bytes)):
            raise EndxError(f"{self._path} is not whole: {len(ends)} documents of {self._count}; make the index again")
        return np.concatenate([[0], ends])


class StoredShard:
    """A shard that is open.

    Attributes:
      entry: its entry in the manifest.
      embeddings: [n, E], a memory map.
      scales: float32 [n], of int8 embeddings; else None.
      documents: n of them.
    """

    def __init__(self, folder: pathlib.Path, manifest: Manifest, entry: Shard):
        """Opens the files of `entry`.

        Raises:
          EndxError: a file is missing, or is not what the manifest says.
        """
        self.entry = entry
        *arrays, lines = (folder / name for name in shard_files(entry.name, manifest.precision))
        self.embeddings = _open_array(arrays[0], (entry.documents, manifest.width), manifest.precision)
        self.scales = _open_array(arrays[1], (entry.documents,), "float32") if len(arrays) > 1 else None
        try:
            self.documents = StoredDocuments(lines, entry.documents)
        except (OSError, ValueError) as failure:
            raise EndxError(f"{lines} can't be read: {failure}; make the index again") from None

    @property
    def rows(self) -> np.ndarray | Quantized:
        """Embeddings, with their scales if they have any."""
        return self.embeddings if self.scales is None else Quantized(self.embeddings, self.scales)


def _open_array(path: pathlib.Path, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as failure:
        raise EndxError(f"{path} can't be read: {failure}; make the index again") from None
    if array.shape != shape or array.dtype != dtype:
        raise EndxError(
            f"{path} is not what its index's manifest says: {array.dtype} {array.shape} and not {dtype} {shape}; "
            "make the index again"
        )
    return array


class Rows:
    """Arrays one after the other, read as if they were one; a slice is copied only where it crosses a seam."""

    def __init__(self, parts: Sequence[np.ndarray]):
        """Takes at least one array, [n, ...], and others of its kind."""
        self._parts = parts
        self._starts = [0, *np.cumsum([len(part) for part in parts]).tolist()]
        self.shape, self.ndim, self.dtype = (self._starts[-1], *parts[0].shape[1:]), parts[0].ndim, parts[0].dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
        """Rows `start:stop`."""
        start, stop, _ = rows.indices(len(self))
        at = bisect.bisect_right(self._starts, start) - 1
        pieces = [self._parts[min(at, len(self._parts) - 1)][:0]]
        for part, first in zip(self._parts[at:], self._starts[at:-1], strict=True):
            if first < stop:
                pieces.append(part[max(start - first, 0) : stop - first])
        return pieces[-1] if len(pieces) < 3 else np.concatenate(pieces)
