"""State of an index at one moment: its embeddings in memory, and its documents on disk."""

import bisect
import functools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from endx_jax.data.documents import Document
from endx_jax.errors import EndxError
from endx_jax.numerics import Quantized, dequantize
from endx_jax.retrieval.filters import condition
from endx_jax.retrieval.index_file import IndexReader, Stored
from endx_jax.retrieval.search import Neighbours, Resident, fits, no_neighbours, top_k

# Share of deleted rows above which the rows are numbered again.
DELETED = 0.5
# Number of filters whose rows are kept.
FILTERS = 16


class Concatenated:
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
    """Embeddings of an index at one moment. Its rows are numbered from 0, in the order in which they were added.

    Texts are read from the file on access, so those that were deleted later can't be read.

    Attributes:
      info: description of the index.
      living: bool [rows], true for rows that are not deleted.
      generation: number of times that the rows were renumbered since the index was opened.
    """

    def __init__(
        self,
        reader: IndexReader,
        parts: Sequence[Stored],
        living: np.ndarray,
        generation: int = 0,
        before: Resident | None = None,
    ):
        """Takes the contents.

        Args:
          reader: open file.
          parts: at least one block of embeddings.
          living: bool [rows].
          generation: see above.
          before: embeddings on the devices whose rows are the first of this snapshot.
        """
        self.info, self.living, self.generation = reader.info, living, generation
        self._reader, self._parts, self._before = reader, parts, before
        self._rows = np.concatenate([part.rows for part in parts])  # of the file
        self._count = int(np.count_nonzero(living))
        self._filtered: dict[str, np.ndarray] = {}
        self.embeddings = Concatenated([part.embeddings for part in parts])
        scales = [part.scales for part in parts if part.scales is not None]
        self.scales = Concatenated(scales) if scales else None

    @classmethod
    def read(cls, reader: IndexReader, generation: int = 0) -> "Snapshot":
        """Reads all embeddings."""
        stored = reader.embeddings(count=reader.count())
        return cls(reader, [stored], np.ones(len(stored.rows), bool), generation)

    def after(self, deleted: Sequence[int], added: Stored) -> "Snapshot":
        """Returns the snapshot after documents were deleted, by their rows in the file, and others added."""
        living = np.concatenate([self.living & ~np.isin(self._rows, deleted), np.ones(len(added.rows), bool)])
        parts = [*self._parts, added] if len(added.rows) else [*self._parts]
        if np.count_nonzero(living) < (1 - DELETED) * len(living):
            rows, embeddings, scales = _joined(parts)
            kept = Stored(rows[living], embeddings[living], None if scales is None else scales[living])
            return Snapshot(self._reader, [kept], np.ones(len(kept.rows), bool), self.generation + 1)
        # A block is merged only into one at least twice as large, so a row is copied once per doubling at most.
        while len(parts) > 1 and len(parts[-2].rows) <= 2 * len(parts[-1].rows):
            parts[-2:] = [_joined(parts[-2:])]
        return Snapshot(self._reader, parts, living, self.generation, vars(self).get("resident", self._before))

    @property
    def last_row(self) -> int:
        """The last row of the file that the snapshot has seen."""
        return int(self._rows[-1]) if len(self._rows) else 0

    def __len__(self) -> int:
        """Returns the number of documents."""
        return self._count

    def __repr__(self) -> str:
        return f"Snapshot({len(self):,} documents, width {self.info.width}, {self.info.precision}, {self.info.metric})"

    def read_documents(self, rows: Iterable[int]) -> dict[int, Document]:
        """Returns the documents of rows; those that were deleted are omitted."""
        wanted = {int(self._rows[row]): row for row in rows}
        return {wanted[row]: document for row, document in self._reader.documents(list(wanted)).items()}

    def document(self, row: int) -> Document:
        """Returns the document of a row.

        Raises:
          EndxError: it was deleted.
        """
        found = self.read_documents([row])
        if not found:
            raise EndxError(f"{self._reader.path}: the document of row {row} was deleted meanwhile: search again")
        return found[row]

    def documents(self) -> Iterator[tuple[int, Document]]:
        """Yields the rows that are not deleted, with their documents."""
        for rows, _, documents in self.parts():
            yield from zip(rows.tolist(), documents, strict=True)

    def rows_of(self, ids: Sequence[str]) -> dict[str, int]:
        """Returns the rows of the documents with these ids; ids without a document are omitted."""
        found = self._reader.rows_of(ids)
        places = np.searchsorted(self._rows, list(found.values()))
        return {name: int(place) for name, place in zip(found, places, strict=True) if place < len(self._rows)}

    def where(self, filters: Mapping[str, object] | None) -> np.ndarray:
        """Returns bool [rows], true for the documents that a filter selects (see `filters.condition`); None: all."""
        if not filters:
            return self.living
        # A filter reads the metadata of all documents, so the rows of the last ones are kept.
        key = json.dumps(filters, sort_keys=True)
        mask = self._filtered.get(key)
        if mask is None:
            mask = self.living & np.isin(self._rows, self._reader.rows_where(*condition(filters)))
            self._filtered = dict([*self._filtered.items(), (key, mask)][-FILTERS:])
        return mask

    def search(self, questions: np.ndarray, k: int, where: np.ndarray | None = None) -> Neighbours:
        """Finds the k documents with the highest inner products for questions [Q, E], exactly; all if there are fewer.

        Embeddings stay on the devices if they fit, else they are streamed: see `search.top_k`.

        Args:
          questions: float32 [Q, E].
          k: number of documents.
          where: bool [rows], true for rows to search (see `where`); None: all that are not deleted.

        Raises:
          EndxError: questions are of another width, or k is below 1.
        """
        if not len(self.living):
            return no_neighbours(len(questions), 0)
        if self.resident is not None:
            return self.resident.search(questions, k, where)
        selected = self.living if where is None else where
        return top_k(questions, self.embeddings, k, scales=self.scales, where=selected)

    @functools.cached_property
    def resident(self) -> Resident | None:
        """Embeddings on the devices; None if they do not fit."""
        size = len(self.embeddings) * self.info.width * self.info.dtype.itemsize
        before, self._before = self._before, None
        return Resident(self.embeddings, self.scales, self.living, before) if fits(size) else None

    def vectors(self, start: int, stop: int) -> np.ndarray:
        """Returns the embeddings of rows `start:stop`, float32 [n, E], including deleted documents."""
        rows = self.embeddings[start:stop]
        if self.scales is None:
            return np.ascontiguousarray(rows, np.float32)
        return np.asarray(dequantize(Quantized(rows, self.scales[start:stop])))

    def parts(self, size: int = 4096) -> Iterator[tuple[np.ndarray, np.ndarray, list[Document]]]:
        """Yields rows [n], embeddings float32 [n, E] and n documents that are not deleted, up to `size` at a time."""
        for start in range(0, len(self.living), size):
            found = self.read_documents((np.flatnonzero(self.living[start : start + size]) + start).tolist())
            rows = np.array(sorted(found), int)
            yield rows, self.vectors(start, start + size)[rows - start], [found[row] for row in rows.tolist()]


def _joined(parts: Sequence[Stored]) -> Stored:
    rows, embeddings, scales = zip(*parts, strict=True)
    return Stored(
        np.concatenate(rows), np.concatenate(embeddings), None if scales[0] is None else np.concatenate(scales)
    )
