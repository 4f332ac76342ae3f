"""State of an index at one moment: its embeddings in memory, and its texts on disk."""

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import jax
import numpy as np

from endx_jax.data.sets.documents import Document
from endx_jax.index.filters import condition
from endx_jax.index.index_file import PASSAGES, QUESTIONS
from endx_jax.index.store import LISTED, STEP, Store, StoredEmbeddings
from endx_jax.numerics import Quantized, dequantize
from endx_jax.ranking.evaluate import ScoreBlock
from endx_jax.ranking.hybrid import Ranking
from endx_jax.ranking.search import Corpus, Neighbours, best_of_groups, fits

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
      embeddings: [rows, E], of the index's precision, including deleted documents.
      scales: float32 [rows] of int8 embeddings; else None.
      of: int64 [rows], the row in the file of each row's document, in ascending order with repeats.
      living: bool [rows], true for rows that are not deleted.
      passages: number of passages that are not deleted; a whole document counts as one.
      generation: number of times that the rows were renumbered since the index was opened.
      known: known questions of the documents; None in their own snapshot.
    """

    def __init__(
        self,
        memory: "Memory",
        living: np.ndarray,
        generation: int = 0,
        before: Corpus | None = None,
        known: "Snapshot | None" = None,
    ):
        """Takes the contents of the memory; `before` is a corpus whose embeddings are the first of this snapshot."""
        self.info, self.living, self.generation, self.known = memory.store.info, living, generation, known
        self._memory, self._store, self._before = memory, memory.store, before
        self._rows, self.embeddings, self.scales, self.of = memory.stored  # `_rows` are rows of the file
        self.passages = int(np.count_nonzero(living))
        several = memory.table == PASSAGES
        self._count = int(np.count_nonzero(np.diff(self.of[living], prepend=-1))) if several else self.passages
        self._filtered: dict[str, np.ndarray] = {}
        self._lock = threading.Lock()
        self._sent: Corpus | None = None

    @classmethod
    def read(cls, store: Store, generation: int = 0, table: str = PASSAGES) -> "Snapshot":
        """Reads all embeddings."""
        memory = Memory(store, store.embeddings_of([]), table)
        memory.extend()
        known = cls.read(store, generation, QUESTIONS) if table == PASSAGES else None
        return cls(memory, np.ones(len(memory.stored.rows), bool), generation, known=known)

    def after(self, deleted: Sequence[int]) -> "Snapshot":
        """Returns the last snapshot after documents were deleted, by their rows in the file, and others added."""
        memory, known = self._memory, None if self.known is None else self.known.after(deleted)
        moved = memory.extend()
        living = ~np.isin(memory.stored.documents, deleted)
        living[: len(self.living)] &= self.living
        if np.count_nonzero(living) < (1 - DELETED) * len(living):
            memory = Memory(memory.store, jax.tree.map(lambda column: column[living], memory.stored), memory.table)
            return Snapshot(memory, np.ones(len(memory.stored.rows), bool), self.generation + 1, known=known)
        before = self._before if self._sent is None else self._sent
        return Snapshot(memory, living, self.generation, None if moved else before, known)

    def __len__(self) -> int:
        """Returns the number of documents, or of known questions."""
        return self._count

    def __repr__(self) -> str:
        return f"Snapshot({len(self):,} documents, width {self.info.width}, {self.info.precision}, {self.info.metric})"

    def __iter__(self) -> Iterator[tuple[int, Document]]:
        for start in range(0, len(self.living), STEP):
            rows = np.flatnonzero(self.living[start : start + STEP]) + start
            yield from sorted(self.read_documents(rows.tolist()).items())

    def where(self, filters: Mapping[str, object] | None) -> np.ndarray:
        """Returns bool [rows], true for the documents that a filter selects (see `filters.condition`); None: all."""
        if not filters:
            return self.living
        # A filter reads the metadata of all documents, so the rows of the last ones are kept.
        sql, values = condition(filters)
        key = json.dumps([sql, values])
        mask = self._filtered.get(key)
        if mask is None:
            selected = [row for (row,) in self._store.rows(f"SELECT row FROM documents WHERE {sql}", *values)]
            mask = self.living & np.isin(self.of, np.array(selected, np.int64))
            self._filtered = dict([*self._filtered.items(), (key, mask)][-FILTERS:])
        return mask

    def search(self, questions: np.ndarray, k: int, where: np.ndarray | None = None) -> Neighbours:
        """Finds the k passages with the highest inner products for questions [Q, E], exactly; all if there are fewer.

        Args:
          questions: float32 [Q, E].
          k: number of passages.
          where: bool [rows], true for rows to search (see `where`); None: all that are not deleted.

        Raises:
          EndxError: questions are of another width, or k is below 1.
        """
        return self._corpus.search(questions, k, where)

    def best_documents(self, k: int, rank: Callable[[int], Sequence[Ranking]]) -> Sequence[Ranking]:
        """Returns the k best documents of each ranking, as the rows and scores of their best passages.

        `rank(depth)` returns rankings of the best `depth` rows; the depth grows until each ranking has k documents.
        """
        depth = k if len(self) == self.passages else 4 * k
        while True:
            rankings, complete, best = rank(depth), True, []
            for ranking in rankings:
                documents = dict[int, tuple[int, float]]()
                for row, score in ranking:
                    documents.setdefault(int(self.of[row]), (row, score))
                best.append([*documents.values()][:k])
                complete &= len(documents) >= k or len(ranking) < depth
            if complete or depth >= self.passages:
                return best
            depth *= 4

    def scores(self, questions: np.ndarray) -> ScoreBlock:
        """Returns the scorer [b, rows] of questions [Q, E] for `ranking.evaluate`.

        A document's best score is at the row of its first passage; all others are -inf.
        """
        scores, first = self._corpus.scores(questions), np.searchsorted(self.of, self.of)
        if np.array_equal(first, np.arange(len(first))):
            return scores
        return lambda start, stop: best_of_groups(np.asarray(scores(start, stop)), first, len(first))

    def rows_of(self, ids: Sequence[str]) -> dict[str, int]:
        """Returns the first rows of the documents with these ids; ids without a document are omitted."""
        wanted = set(ids)
        found = self._store.rows(f"SELECT id, row FROM documents WHERE id IN {LISTED}", json.dumps(ids))
        places = {name: int(np.searchsorted(self.of, row)) for name, row in found if name in wanted}
        return {name: place for name, place in places.items() if place < len(self.of)}

    def ids_of(self, rows: Sequence[int]) -> dict[int, str]:
        """Returns the ids of the documents of rows, also of those that were deleted."""
        query = " UNION ALL ".join(
            f"SELECT row, id FROM {table} WHERE row IN {LISTED}" for table in ("documents", "deleted")
        )
        of = {row: int(self.of[row]) for row in rows}
        names = dict(self._store.rows(query, *[json.dumps([*of.values()])] * 2))
        return {row: names[document] for row, document in of.items()}

    def read_documents(self, rows: Iterable[int]) -> dict[int, Document]:
        """Returns the passages of rows; those that were deleted are omitted."""
        wanted = {int(self._rows[row]): row for row in rows}
        return {wanted[row]: document for row, document in self._store.documents(list(wanted)).items()}

    def token_vectors(self, rows: Sequence[int]) -> dict[int, Quantized]:
        """Returns the token vectors [L, E] of rows, in their order; those of deleted documents are omitted."""
        stored = self._store.token_vectors(self._rows[rows].tolist())
        return {row: stored[at] for row in rows if (at := int(self._rows[row])) in stored}

    def vectors(self, start: int, stop: int) -> np.ndarray:
        """Returns the embeddings of rows `start:stop`, float32 [n, E], including deleted documents."""
        rows = self.embeddings[start:stop]
        if self.scales is None:
            return np.ascontiguousarray(rows, np.float32)
        return np.asarray(dequantize(Quantized(rows, self.scales[start:stop])))

    @property
    def _corpus(self) -> Corpus:
        """Embeddings for exact search, on the devices if they fit."""
        with self._lock:  # two threads would send them twice
            if self._sent is None:
                resident = fits(self.embeddings.nbytes)
                self._sent = Corpus(self.embeddings, self.scales, self.living, resident=resident, before=self._before)
                self._before = None
            return self._sent


class Memory:
    """Embeddings of an index in memory, with reserved memory behind them for those that are added.

    Attributes:
      store: open file.
      stored: views of the filled part, which is never overwritten.
      table: table of the embeddings.
    """

    def __init__(self, store: Store, stored: StoredEmbeddings, table: str):
        """Takes embeddings without reserved memory."""
        self.store, self.stored, self._reserved, self.table = store, stored, stored, table

    def extend(self) -> bool:
        """Adds the embeddings that were added to the file; returns true if all had to be moved in memory."""
        moved = False
        for part in self.store.embeddings(int(self.stored.rows[-1]) if len(self.stored.rows) else 0, self.table):
            start, stop = len(self.stored.rows), len(self.stored.rows) + len(part.rows)
            if stop > len(self._reserved.rows):
                ((count,),) = self.store.rows(f"SELECT count(*) FROM {self.table}")
                # The system provides reserved memory when it is first written to.
                size = max(stop, count) * 9 // 8
                self._reserved = jax.tree.map(lambda column: _aligned(size, column), self.stored)  # noqa: B023
                _write(self._reserved, 0, self.stored)
                moved = True
            _write(self._reserved, start, part)
            self.stored = jax.tree.map(lambda column: column[:stop], self._reserved)  # noqa: B023
        return moved


def _aligned(size: int, like: np.ndarray) -> np.ndarray:
    """Returns an uninitialised array at a multiple of 64 bytes, which JAX uses on a CPU without a copy."""
    count = size * like.itemsize * int(np.prod(like.shape[1:]))
    memory = np.empty(count + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + count].view(like.dtype).reshape(size, *like.shape[1:])


def _write(columns: StoredEmbeddings, start: int, values: StoredEmbeddings) -> None:
    for column, part in zip(jax.tree.leaves(columns), jax.tree.leaves(values), strict=True):
        column[start : start + len(part)] = part
