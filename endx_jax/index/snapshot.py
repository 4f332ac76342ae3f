"""State of an index at one moment: its embeddings, mapped from a cache, and its texts in the file."""

import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from endx_jax.data.sets.documents import Document
from endx_jax.errors import EndxError
from endx_jax.index.cache import VECTORS, Cache, adopt, is_behind, make_cache, open_cache
from endx_jax.index.filters import condition
from endx_jax.index.index_file import PASSAGES, QUESTIONS, REMEDY
from endx_jax.index.store import LISTED, ROW_OF, STEP, Store, StoredEmbeddings
from endx_jax.numerics import Quantized, dequantize
from endx_jax.ranking.binary import BinaryCorpus
from endx_jax.ranking.search import BLOCK, Corpus, fits

# Share of deleted rows above which the rows are numbered again.
DELETED = 0.5
# Number of filters whose rows are kept.
FILTERS = 16


class Snapshot:
    """Embeddings of an index at one moment. Its rows are numbered from 0, in the order in which they were added.

    A row is a passage of a document, or a whole document. Texts are read from the file on access, so those that were
    deleted later can't be read. Known questions are a snapshot of their own, `known`; all other attributes and methods
    are about documents alone. Iterating yields the rows that are not deleted, with their passages.

    Attributes:
      info: description of the index.
      store: its open file.
      rows: int64 [rows], numbers of the rows in the file.
      embeddings: [rows, E], of the index's precision, including deleted documents.
      scales: float32 [rows] of int8 embeddings; else None.
      signs: bits of the embeddings, uint32 [rows, W], in an index of precision `binary`; else None.
      of: int64 [rows], the row in the file of each row's document, in ascending order with repeats.
      living: bool [rows], true for rows that are not deleted.
      passages: number of passages that are not deleted; a whole document counts as one.
      generation: number of times that the rows were renumbered since the index was opened.
      known: known questions of the documents; None in their own snapshot.
    """

    def __init__(
        self,
        store: Store,
        stored: StoredEmbeddings,
        deletions: int,
        *,
        living: np.ndarray | None = None,
        generation: int = 0,
        before: Corpus | BinaryCorpus | None = None,
        known: "Snapshot | None" = None,
    ):
        """Takes what `read` reads; `before` is a corpus whose embeddings are the first of this snapshot."""
        self.info, self.store, self.generation, self.known = store.info, store, generation, known
        self.rows, self.embeddings, self.scales, self.of, self.signs = stored
        self.living = np.ones(len(stored.rows), bool) if living is None else living
        self.passages = int(np.count_nonzero(self.living))
        self._stored, self._deletions, self._before = stored, deletions, before
        several = int(np.count_nonzero(np.diff(self.of[self.living], prepend=-1)))
        self._count = self.passages if known is None else several
        self._filtered: dict[str, np.ndarray] = {}
        self._lock = threading.Lock()
        self._sent: Any = None

    @classmethod
    def read(cls, store: Store, last: "Snapshot | None" = None) -> "Snapshot":
        """Returns the present state of an index, of which only what changed since the `last` snapshot is read.

        Raises:
          EndxError: the index was replaced by one of another model.
        """
        generation, cache, snapshot = 0 if last is None else last.generation + 1, None, None
        with store.reading():
            if last is not None and last.store is store and last.info.content == store.info.content:
                snapshot = last._after(PASSAGES)
            elif last is not None:
                _check_same_model(last, store)
            for anew in (False, True):
                if snapshot is None:
                    cache = (None if anew else _open_embeddings(store)) or _make_embeddings(store)
                    stored, known = (_of_table(cache, table) for table in (PASSAGES, QUESTIONS))
                    number = cache.about["deletions"]
                    base = cls(store, stored, number, generation=generation, known=cls(store, known, number))
                    snapshot = base._after(PASSAGES)
        assert snapshot is not None  # nothing is deleted in a new cache
        if cache is not None:
            adopt(store, VECTORS, cache)
        return snapshot

    def _after(self, table: str) -> "Snapshot | None":
        """Returns the present snapshot, with what was added and without what was deleted since this one.

        None: so much was deleted that all should be read again.
        """
        query = "SELECT row, number FROM deleted WHERE number > ? ORDER BY number"
        deletions = [*self.store.rows(query, self._deletions)]
        if not all(type(row) is int for row, _ in deletions):
            raise EndxError(f"{self.store.path} is damaged: a deletion names no document; {REMEDY}")
        known = None if self.known is None else self.known._after(QUESTIONS)
        stored = self._stored
        for part in self.store.embeddings("row > ?", int(self.rows[-1]) if len(self.rows) else 0, table=table):
            stored = _joined(stored, part)
        living = ~np.isin(stored.documents, [row for row, _ in deletions])
        living[: len(self.living)] &= self.living
        if table == PASSAGES and np.count_nonzero(living) < (1 - DELETED) * len(living):
            return None
        number, before = max([self._deletions, *(number for _, number in deletions)]), self._sent or self._before
        return Snapshot(
            self.store, stored, number, living=living, generation=self.generation, before=before, known=known
        )

    def __len__(self) -> int:
        """Returns the number of documents, or of known questions."""
        return self._count

    def __repr__(self) -> str:
        return f"Snapshot({len(self):,} documents, width {self.info.width}, {self.info.precision}, {self.info.metric})"

    def __iter__(self) -> Iterator[tuple[int, Document]]:
        for start in range(0, len(self.living), STEP):
            rows = np.flatnonzero(self.living[start : start + STEP]) + start
            yield from sorted(self.documents(rows.tolist()).items())

    def where(self, filters: Mapping[str, object] | None) -> np.ndarray:
        """Returns bool [rows], true for the documents that a filter selects (see `filters.condition`); None: all."""
        if not filters:
            return self.living
        # A filter reads the metadata of all documents, so the rows of the last ones are kept.
        sql, values = condition(filters)
        key = json.dumps([sql, values])
        mask = self._filtered.get(key)
        if mask is None:
            selected = [row for (row,) in self.store.rows(f"SELECT row FROM documents WHERE {sql}", *values)]
            mask = self.living & np.isin(self.of, np.array(selected, np.int64))
            self._filtered = dict([*self._filtered.items(), (key, mask)][-FILTERS:])
        return mask

    @property
    def corpus(self) -> Corpus | BinaryCorpus:
        """Embeddings or signs to search, on the devices if they fit; those of deleted documents do not count."""
        with self._lock:  # two threads would send them twice
            if self._sent is None:
                columns: tuple[Any, ...] = self.embeddings, self.scales, self.living
                kind: Any = Corpus
                if self.signs is not None:
                    columns, kind = (self.signs, *columns), BinaryCorpus
                self._sent = kind(*columns, resident=fits(columns[0].nbytes), before=self._before)
                self._before = None
            return self._sent

    def vectors(self, start: int, stop: int) -> np.ndarray:
        """Returns the embeddings of rows `start:stop`, float32 [n, E], including deleted documents."""
        rows = self.embeddings[start:stop]
        if self.scales is None:
            return np.ascontiguousarray(rows, np.float32)
        return np.asarray(dequantize(Quantized(rows, self.scales[start:stop])))

    def rows_of(self, ids: Sequence[str]) -> dict[str, int]:
        """Returns the first rows of the documents with these ids; ids without a document are omitted."""
        found = [(name, row) for name in ids for (row,) in self.store.rows(ROW_OF, name)]
        places = {name: int(np.searchsorted(self.of, row)) for name, row in found}
        return {name: place for name, place in places.items() if place < len(self.of)}

    def ids_of(self, rows: Sequence[int]) -> dict[int, str]:
        """Returns the ids of the documents of rows, also of those that were deleted."""
        query = " UNION ALL ".join(
            f"SELECT row, id FROM {table} WHERE row IN {LISTED}" for table in ("documents", "deleted")
        )
        of = {row: int(self.of[row]) for row in rows}
        names = dict(self.store.rows(query, *[json.dumps([*of.values()])] * 2))
        return {row: names[document] for row, document in of.items()}

    def documents(self, rows: Iterable[int]) -> dict[int, Document]:
        """Returns the passages of rows, with their document's metadata; those that were deleted are omitted."""
        wanted = {int(self.rows[row]): row for row in rows}
        return {wanted[row]: document for row, document in self.store.documents([*wanted]).items()}


class Parts:
    """Embeddings [N, E] in several arrays, so that those that are added do not move the others in memory."""

    ndim = 2

    def __init__(self, parts: Sequence[np.ndarray]):
        self._parts, self._ends, self.dtype = parts, np.cumsum([len(part) for part in parts]), parts[0].dtype
        self.shape, self.nbytes = (int(self._ends[-1]), parts[0].shape[1]), sum(part.nbytes for part in parts)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        """Returns rows by their numbers, or consecutive rows, without a copy if they are in one array."""
        if isinstance(rows, np.ndarray):
            taken = np.empty((len(rows), self.shape[1]), self.dtype)
            of = np.searchsorted(self._ends, rows, "right")
            for n, part in enumerate(self._parts):
                taken[of == n] = part[rows[of == n] - (self._ends[n] - len(part))]
            return taken
        start, stop, _ = rows.indices(len(self))
        found = []
        for part, end in zip(self._parts, self._ends.tolist(), strict=True):
            first = end - len(part)
            if start < end and first < stop:
                found.append(part[max(0, start - first) : stop - first])
        return found[0] if len(found) == 1 else np.concatenate(found or [self._parts[0][:0]])

    def plus(self, added: np.ndarray) -> "Parts":
        """Returns the embeddings with others behind them; a block of these is copied at most."""
        first, *others = self._parts
        if others and len(others[-1]) < BLOCK:
            added = np.concatenate([others.pop(), added])
        return Parts([first, *others, added])


def _open_embeddings(store: Store) -> Cache | None:
    """Maps the embeddings of an index from its cache; None if there is none, or much is missing in it."""
    cache = open_cache(store, VECTORS, {"content": store.info.content})
    if cache is None:
        return None
    rows = cache.arrays[f"{PASSAGES}.rows"]
    ((missing,),) = store.rows("SELECT count(*) FROM passages WHERE row > ?", int(rows[-1]))
    return None if is_behind(len(rows), missing) else cache


def _make_embeddings(store: Store) -> Cache:
    """Reads the embeddings of an index into its cache."""
    info, counts, shapes = store.info, dict[str, int](), dict[str, tuple[np.dtype, tuple[int, ...]]]()
    for table in (PASSAGES, QUESTIONS):
        ((count,),) = store.rows(f"SELECT count(*) FROM {table}")
        counts[table] = count
        shapes |= {f"{table}.{name}": (np.dtype(np.int64), (count,)) for name in ("rows", "documents")}
        shapes[f"{table}.embeddings"] = info.dtype, (count, info.width)
        shapes[f"{table}.scales"] = np.dtype(np.float32), (count if info.dtype == np.int8 else 0,)
        if info.precision == "binary":
            shapes[f"{table}.signs"] = np.dtype(np.uint32), (count, -(-info.width // 32))

    ((pages, size),) = store.rows("SELECT page_count, page_size FROM pragma_page_count, pragma_page_size")
    if sum(counts.values()) * info.width * info.dtype.itemsize > pages * size:  # or all memory would be taken
        raise EndxError(f"{store.path} is damaged: it is too small for embeddings of width {info.width}; {REMEDY}")

    def fill(arrays: dict[str, np.ndarray]) -> None:
        for table in counts:
            start = 0
            for part in store.embeddings("1", table=table):
                for column, values in part._asdict().items():
                    if values is not None:
                        arrays[f"{table}.{column}"][start : start + len(part.rows)] = values
                start += len(part.rows)

    ((deletions,),) = store.rows("SELECT coalesce(max(number), 0) FROM deleted")
    about = {"content": info.content, "deletions": deletions}
    return make_cache(store, VECTORS, about, shapes, fill, rows=counts[PASSAGES])


def _of_table(cache: Cache, table: str) -> StoredEmbeddings:
    columns: list[Any] = [cache.arrays.get(f"{table}.{column}") for column in StoredEmbeddings._fields]
    rows, embeddings, scales, documents, signs = columns
    scales = scales if embeddings.dtype == np.int8 else None
    return StoredEmbeddings(rows, Parts([embeddings]), scales, documents, None if signs is None else Parts([signs]))


def _joined(stored: StoredEmbeddings, part: StoredEmbeddings) -> StoredEmbeddings:
    rows, documents = (np.concatenate(pair) for pair in ((stored.rows, part.rows), (stored.documents, part.documents)))
    scales = None if stored.scales is None else np.concatenate([stored.scales, part.scales])
    signs = None if stored.signs is None else stored.signs.plus(part.signs)
    return StoredEmbeddings(rows, stored.embeddings.plus(part.embeddings), scales, documents, signs)


def _check_same_model(last: Snapshot, store: Store) -> None:
    old, new = last.info, store.info
    if old.model.get("identity") != new.model.get("identity") or old.width != new.width or not new.complete:
        raise EndxError(f"{store.path} was replaced by an index of another model: open it again (restart a server)")
