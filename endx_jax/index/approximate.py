"""Approximate search of an index by faiss, whose index is built from a snapshot on first use."""

import math
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from endx_jax.errors import EndxError, install

if TYPE_CHECKING:  # flags name the engines, and importing these takes a second
    from endx_jax.index.snapshot import Snapshot
    from endx_jax.ranking.search import Neighbours

EXACT = "exact"  # the search on the device, which needs no library
# Strings of faiss's `index_factory` by the names that `open_index` and `--engine` take.
ENGINES = {"flat": "Flat", "ivf": "IVF{clusters},Flat", "hnsw": "HNSW32,Flat"}

# Rows passed to faiss at a time.
STEP = 65536
# The index is clustered again once it needs this many times as many clusters.
OUTGROWN = 2
# Training embeddings per cluster, at most and at least: faiss's defaults.
MOST_EACH, FEWEST_EACH = 256, 39


class Faiss:
    """Search by a library that holds the embeddings of an index in memory, in its own form. Threads may share it.

    - `flat` compares every embedding, as the exact search does.
    - `ivf` puts embeddings into 4 sqrt(N) clusters, by k-means with a fixed seed, and searches an eighth of them, at
      least 8.
    - `hnsw` searches a graph of neighbours (Malkov and Yashunin 2018) with 32 links per node, 200 candidates during
      construction and at least 128 during search. Results may differ between builds, which use several threads.
    """

    def __init__(self, name: str):
        """Takes a name in `ENGINES`; raises EndxError if faiss is not installed."""
        try:
            import faiss
        except ImportError:
            raise EndxError(f"the engine {name!r} needs faiss: {install('search')}") from None
        self._faiss, self._name = faiss, name
        self._lock, self._generation = threading.Lock(), -1  # of no snapshot
        self._index: Any = None

    def search(
        self, snapshot: "Snapshot", questions: np.ndarray, k: int, where: np.ndarray | None = None
    ) -> "Neighbours":
        """Finds up to k rows for questions [Q, E], exactly if faiss finds fewer, as behind a narrow filter.

        `where`, bool [rows], is true for rows to search; None: all that are not deleted.
        """
        from endx_jax.ranking.search import Neighbours, no_neighbours

        where = snapshot.living if where is None else where
        k = min(k, int(np.count_nonzero(where)))
        if k == 0 or len(questions) == 0:
            return no_neighbours(len(questions), k)
        with self._lock:
            self._update(snapshot)
            faiss, index, kind, options = self._faiss, self._index, "SearchParameters", dict[str, Any]()
            # The index may have more rows than the snapshot, if another thread searches a later one.
            if index.ntotal > len(where) or not where.all():
                options["sel"] = faiss.IDSelectorBitmap(np.packbits(where, bitorder="little"))
            if isinstance(index, faiss.IndexIVF):
                kind, options["nprobe"] = "SearchParametersIVF", max(8, index.nlist // 8)
            if isinstance(index, faiss.IndexHNSW):
                kind, options["efSearch"] = "SearchParametersHNSW", max(128, 2 * k)
            scores, rows = index.search(questions, k, params=getattr(faiss, kind)(**options))
        if (rows < 0).any():
            return snapshot.corpus.search(questions, k, where)
        return Neighbours(scores, rows.astype(np.int32))

    def _update(self, snapshot: "Snapshot") -> None:
        """Adds the rows that the index does not have yet; builds it again if they were renumbered or outgrow it."""
        count, grown = len(snapshot.living), False
        if isinstance(self._index, self._faiss.IndexIVF):
            grown = clusters(count) > OUTGROWN * self._index.nlist
        if self._generation != snapshot.generation or grown:
            self._index, self._generation = self._empty(snapshot), snapshot.generation
        while self._index.ntotal < count:
            start = self._index.ntotal
            self._index.add(snapshot.vectors(start, min(start + STEP, count)))

    def _empty(self, snapshot: "Snapshot"):
        """Returns an index without rows; clusters of `ivf` are trained."""
        faiss, count = self._faiss, len(snapshot.living)
        factory = ENGINES[self._name].format(clusters=clusters(count))
        index = faiss.index_factory(snapshot.info.width, factory, faiss.METRIC_INNER_PRODUCT)
        if isinstance(index, faiss.IndexHNSW):
            index.hnsw.efConstruction = 200
        if isinstance(index, faiss.IndexIVF):
            stride = max(1, count // (MOST_EACH * index.nlist))
            sample = [snapshot.vectors(start, min(start + STEP, count))[::stride] for start in range(0, count, STEP)]
            index.train(np.concatenate(sample))
        return index


def clusters(count: int) -> int:
    """Returns the number of clusters for `count` embeddings."""
    return max(1, min(4 * math.isqrt(count), count // FEWEST_EACH))
