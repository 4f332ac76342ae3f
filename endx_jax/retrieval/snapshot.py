"""State of an index at one moment: memory-mapped shards, which stay readable while the index changes."""

import bisect
import functools
import io
import math
import mmap
import pathlib
import re
from collections.abc import Iterator, Sequence

import numpy as np

from endx_jax import json_files
from endx_jax.data.documents import Document
from endx_jax.errors import EndxError
from endx_jax.numerics import Quantized, dequantize
from endx_jax.retrieval.search import Neighbours, Resident, fits, no_neighbours, top_k
from endx_jax.retrieval.shards import Manifest, Shard, shard_files

REMEDY = "restore the index from a copy, or make it again"


class MappedFile:
    """Memory-mapped file, which stays readable after it is deleted.

    Attributes:
      path: path of the file.
      contents: bytes of the file; reading them after the file was truncated kills the process: see `check`.
    """

    def __init__(self, path: pathlib.Path):
        """Maps the file.

        Raises:
          EndxError: the file can't be read, or is empty.
        """
        self.path = path
        try:
            with open(path, "rb") as stream:
                self.contents = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as failure:
            reason = failure.strerror if isinstance(failure, OSError) else "it is empty"
            raise EndxError(f"{path} can't be read: {reason}; {REMEDY}") from None

    def check(self) -> None:
        """Raises EndxError if the file was truncated since it was mapped."""
        if self.contents.size() < len(self.contents):
            raise EndxError(
                f"{self.path} was overwritten while it was open: {REMEDY}. To replace an index that is in use, "
                "rename its folder, then give another folder its name"
            )


class StoredDocuments:
    """Documents of a shard, each read on access."""

    def __init__(self, path: pathlib.Path, count: int):
        """Opens `path`, which should hold `count` documents."""
        self._file, self._count = MappedFile(path), count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Document]:
        return map(self.__getitem__, range(self._count))

    def __getitem__(self, row: int) -> Document:
        """Returns the document of a row, from 0.

        Raises:
          EndxError: the file is damaged.
        """
        self._file.check()
        line = self._file.contents[self._ends[row] : self._ends[row + 1]]
        where = f"{self._file.path}, line {row + 1}"
        fields = json_files.parse(line, where, dict)
        found = [json_files.value(fields, key, where) for key in ("id", "text")]
        for key, value in zip(("id", "text"), found, strict=True):
            json_files.text(value, f"{where}: {key!r}", may_be_empty=True)
        metadata = json_files.mapped(json_files.value(fields, "metadata", where, {}), f"{where}: 'metadata'")
        return Document(str(found[0]), str(found[1]), metadata)

    @functools.cached_property
    def _ends(self) -> np.ndarray:
        """Offsets of the ends of lines, after a 0; computed on first access."""
        contents = self._file.contents
        ends = np.fromiter((found.end() for found in re.finditer(b"\n", contents)), np.int64)
        if len(ends) != self._count or ends[-1] != len(contents):
            raise EndxError(f"{self._file.path} is incomplete: {len(ends)} of {self._count} documents; {REMEDY}")
        return np.concatenate([[0], ends])


class StoredShard:
    """Open shard.

    Attributes:
      entry: its entry in the manifest.
      embeddings: [n, E], a memory map.
      scales: float32 [n] of int8 embeddings; else None.
      documents: n documents.
    """

    def __init__(self, folder: pathlib.Path, manifest: Manifest, entry: Shard):
        """Opens the files of `entry`.

        Raises:
          EndxError: a file is missing, or does not match the manifest.
        """
        self.entry = entry
        *arrays, lines = (folder / name for name in shard_files(entry.name, manifest.precision))
        self._files = [MappedFile(path) for path in arrays]
        self.embeddings = _array(self._files[0], (entry.documents, manifest.width), manifest.precision)
        self.scales = _array(self._files[1], (entry.documents,), "float32") if len(arrays) > 1 else None
        self.documents = StoredDocuments(lines, entry.documents)

    @property
    def rows(self) -> np.ndarray | Quantized:
        """Embeddings, with scales if they are int8."""
        self.check()
        return self.embeddings if self.scales is None else Quantized(self.embeddings, self.scales)

    def check(self) -> None:
        """Raises EndxError if a file of embeddings was truncated since it was opened."""
        for file in self._files:
            file.check()


def _array(file: MappedFile, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Returns the array of a `.npy` file, whose header must be the one that NumPy writes for it."""
    expected = io.BytesIO()
    about = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(expected, about)
    magic, wanted = expected.getvalue()[:8], expected.getvalue()[10:].strip()
    start = 10 + int.from_bytes(
        file.contents[8:10], "little"
    )  # the padding of the header differs between NumPy versions
    found = file.contents[10:start].strip()
    if file.contents[:8] != magic or found != wanted:
        raise EndxError(
            f"{file.path} does not match the manifest of its index: its header is {found[:200]!a} and not "
            f"{wanted!a}; {REMEDY}"
        )
    size = math.prod(shape)
    if len(file.contents) != start + size * np.dtype(dtype).itemsize:
        raise EndxError(f"{file.path} is incomplete: {len(file.contents)} bytes; {REMEDY}")
    return np.frombuffer(file.contents, dtype, size, start).reshape(shape)


class Rows:
    """Concatenation of arrays that copies a slice only if it spans several of them."""

    def __init__(self, parts: Sequence[np.ndarray]):
        """Takes at least one array [n, ...]; all have the same dtype and trailing shape."""
        self._parts = parts
        self._starts = [0, *np.cumsum([len(part) for part in parts]).tolist()]
        self.shape, self.ndim, self.dtype = (self._starts[-1], *parts[0].shape[1:]), parts[0].ndim, parts[0].dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
        """Returns rows `start:stop`."""
        start, stop, _ = rows.indices(len(self))
        at = bisect.bisect_right(self._starts, start) - 1
        pieces = [self._parts[min(at, len(self._parts) - 1)][:0]]
        for part, first in zip(self._parts[at:], self._starts[at:-1], strict=True):
            if first < stop:
                pieces.append(part[max(start - first, 0) : stop - first])
        return pieces[-1] if len(pieces) < 3 else np.concatenate(pieces)


class Snapshot:
    """Immutable state of an index: its open shards and deleted rows.

    Attributes:
      manifest: manifest at that moment.
      shards: open shards of the manifest.
      living: bool [rows], true for rows that are not deleted.
    """

    def __init__(self, manifest: Manifest, shards: Sequence[StoredShard], before: "Snapshot | None" = None):
        """Takes the open shards.

        Args:
          manifest: manifest of the index.
          shards: open shards.
          before: an earlier state whose rows are the first of this one; its embeddings on the devices are reused.
        """
        self.manifest, self.shards = manifest, tuple(shards)
        self._starts = np.cumsum([0, *(len(shard.documents) for shard in shards)])
        self.living = np.ones(self._starts[-1], bool)
        self.living[list(manifest.deleted)] = False
        self._before: Resident | None = vars(before).get("resident", before._before) if before else None

    def __len__(self) -> int:
        """Returns the number of documents."""
        return len(self.living) - len(self.manifest.deleted)

    def __repr__(self) -> str:
        stored = f"width {self.manifest.width}, {self.manifest.precision}, {self.manifest.metric}"
        return f"Snapshot({len(self):,} documents, {stored})"

    def document(self, row: int) -> Document:
        """Returns the document of a row, deleted or not."""
        shard = int(np.searchsorted(self._starts, row, side="right")) - 1
        return self.shards[shard].documents[row - int(self._starts[shard])]

    def documents(self) -> Iterator[tuple[int, Document]]:
        """Yields the rows that are not deleted, with their documents."""
        for row in np.flatnonzero(self.living).tolist():
            yield row, self.document(row)

    def parts_of_shards(self) -> Iterator[tuple[StoredShard, np.ndarray]]:
        """Yields each shard with its part of `living`, bool [n]."""
        for shard, start in zip(self.shards, self._starts[:-1], strict=True):
            yield shard, self.living[start : start + len(shard.documents)]

    def search(self, questions: np.ndarray, k: int) -> Neighbours:
        """Finds the k documents with the highest inner products for questions [Q, E], exactly; all if there are fewer.

        Embeddings stay on the devices if they fit, else they are streamed: see `search.top_k`.

        Raises:
          EndxError: questions are of another width, k is below 1, or the files were overwritten.
        """
        for opened in self.shards:
            opened.check()
        if not self.shards:
            return no_neighbours(len(questions), 0)
        if self.resident is not None:
            return self.resident.search(questions, k)
        return top_k(questions, self.embeddings, k, scales=self.scales, where=self.living)

    @functools.cached_property
    def embeddings(self) -> Rows:
        """Stored embeddings [rows, E]."""
        return Rows([shard.embeddings for shard in self.shards])

    @functools.cached_property
    def scales(self) -> Rows | None:
        """Scales, float32 [rows], of int8 embeddings; else None."""
        parts = [shard.scales for shard in self.shards if shard.scales is not None]
        return Rows(parts) if parts else None

    @functools.cached_property
    def resident(self) -> Resident | None:
        """Embeddings on the devices; None if they do not fit."""
        size = sum(shard.embeddings.nbytes for shard in self.shards)
        before, self._before = self._before, None
        return Resident(self.embeddings, self.scales, self.living, before) if fits(size) else None

    def vectors(self, start: int, stop: int) -> np.ndarray:
        """Returns the embeddings of rows `start:stop`, float32 [n, E], including deleted documents."""
        for opened in self.shards:
            opened.check()
        rows = self.embeddings[start:stop]
        if self.scales is None:
            return np.ascontiguousarray(rows, np.float32)
        return np.asarray(dequantize(Quantized(rows, self.scales[start:stop])))

    def parts(self, size: int = 4096) -> Iterator[tuple[np.ndarray, np.ndarray, list[Document]]]:
        """Yields rows [n], embeddings float32 [n, E] and n documents that are not deleted, up to `size` at a time."""
        for start in range(0, len(self.living), size):
            rows = np.flatnonzero(self.living[start : start + size]) + start
            yield rows, self.vectors(start, start + size)[rows - start], [self.document(row) for row in rows.tolist()]
