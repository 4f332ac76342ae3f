"""Approximate search by faiss, with engines that are built from an index on first use."""

import math
import threading
from typing import Any

import numpy as np

from endx_jax.errors import EndxError
from endx_jax.index.snapshot import Snapshot
from endx_jax.ranking.search import Neighbours, no_neighbours

FLAT, IVF, HNSW = ENGINES = ("flat", "ivf", "hnsw")

# Rows passed to faiss at a time.
STEP = 65536
# The index is clustered again once it needs this many times as many clusters.
OUTGROWN = 2
# Training embeddings per cluster, at most and at least: faiss's defaults.
MOST_EACH, FEWEST_EACH = 256, 39


class Approximate:
    """One faiss engine over the embeddings of an index.

    - `flat` compares every embedding, as the exact search does.
    - `ivf` puts embeddings into 4 sqrt(N) clusters, by k-means with a fixed seed, and searches an eighth of them, at
      least 8.
    - `hnsw` searches a graph of neighbours (Malkov and Yashunin 2018) with 32 links per node, 200 candidates during
      construction and at least 128 during search. Results may differ between builds, which use several threads.

    The engine is kept in memory. New rows are added to it, and deleted ones are skipped by a selector. When rows are
    renumbered, it is built again.
    """

    def __init__(self, engine: str):
        """Stores the engine, a name in `ENGINES`; builds nothing yet."""
        self._engine = engine
        self._lock = threading.Lock()
        self._index: Any = None
        self._generation = 0

    def search(self, snapshot: Snapshot, questions: np.ndarray, k: int, where: np.ndarray | None = None) -> Neighbours:
        """Finds up to k rows for questions [Q, E]; where fewer are found, the row is -1.

        `where`, bool [rows], is true for rows to search; None: all that are not deleted.

        Raises:
          EndxError: faiss is not installed.
        """
        where = snapshot.living if where is None else where
        k = min(k, int(np.count_nonzero(where)))
        if k == 0 or len(questions) == 0:
            return no_neighbours(len(questions), k)
        with self._lock:
            self._bring_up_to_date(snapshot)
            scores, rows = self._index.search(questions, k, params=self._parameters(where, k))
        return Neighbours(scores, rows.astype(np.int32))

    def _bring_up_to_date(self, snapshot: Snapshot) -> None:
        count, renumbered = len(snapshot.living), snapshot.generation != self._generation
        outgrown = self._engine == IVF and self._index and clusters(count) > OUTGROWN * self._index.nlist
        if self._index is None or renumbered or outgrown:
            self._index, self._generation = _empty(self._engine, snapshot), snapshot.generation
        while self._index.ntotal < count:
            start = self._index.ntotal
            self._index.add(snapshot.vectors(start, min(start + STEP, count)))

    def _parameters(self, where: np.ndarray, k: int):
        faiss = _library(self._engine)
        options = {}
        if not where.all():
            options["sel"] = faiss.IDSelectorBitmap(np.packbits(where, bitorder="little"))
        if self._engine == IVF:
            return faiss.SearchParametersIVF(nprobe=max(8, self._index.nlist // 8), **options)
        if self._engine == HNSW:
            return faiss.SearchParametersHNSW(efSearch=max(128, 2 * k), **options)
        return faiss.SearchParameters(**options)


def clusters(count: int) -> int:
    """Returns the number of clusters for `count` embeddings."""
    return max(1, min(4 * math.isqrt(count), count // FEWEST_EACH))


def _empty(engine: str, snapshot: Snapshot):
    """Returns an engine without rows; clusters of `ivf` are trained."""
    faiss, count = _library(engine), len(snapshot.living)
    kind = {FLAT: "Flat", IVF: f"IVF{clusters(count)},Flat", HNSW: "HNSW32,Flat"}[engine]
    index = faiss.index_factory(snapshot.info.width, kind, faiss.METRIC_INNER_PRODUCT)
    if engine == HNSW:
        index.hnsw.efConstruction = 200
    if engine == IVF:
        stride = max(1, count // (MOST_EACH * index.nlist))
        sample = [snapshot.vectors(start, min(start + STEP, count))[::stride] for start in range(0, count, STEP)]
        index.train(np.concatenate(sample))
    return index


def _library(engine: str):
    try:
        import faiss
    except ImportError:
        raise EndxError(f"the engine {engine!r} needs faiss: pip install 'endx_jax[search]'") from None
    return faiss
