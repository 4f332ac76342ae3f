"""Search by other libraries, such as faiss: engines that are built from an index on first use."""

import abc
import functools
import math
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from endx_jax.errors import EndxError

if TYPE_CHECKING:  # flags name the engines, and importing these takes a second
    from endx_jax.index.snapshot import Snapshot
    from endx_jax.ranking.search import Neighbours

EXACT = "exact"  # the search on the device, which is no engine
FLAT, IVF, HNSW = "flat", "ivf", "hnsw"

# Rows passed to faiss at a time.
STEP = 65536
# The index is clustered again once it needs this many times as many clusters.
OUTGROWN = 2
# Training embeddings per cluster, at most and at least: faiss's defaults.
MOST_EACH, FEWEST_EACH = 256, 39


class Engine(abc.ABC):
    """Search by a library that holds the embeddings of an index in memory, in its own form."""

    def __init__(self):
        self._lock, self._generation = threading.Lock(), -1  # of no snapshot

    @abc.abstractmethod
    def update(self, snapshot: "Snapshot", renumbered: bool) -> None:
        """Adds the rows of a snapshot that it does not have yet, all of them if they were `renumbered`."""

    @abc.abstractmethod
    def find(self, questions: np.ndarray, k: int, where: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Returns inner products and rows [Q, k], best first, -1 where fewer are found; arguments as in `search`."""

    def search(
        self, snapshot: "Snapshot", questions: np.ndarray, k: int, where: np.ndarray | None = None
    ) -> "Neighbours":
        """Finds up to k rows for questions [Q, E], exactly if the engine finds fewer, as behind a narrow filter.

        `where`, bool [rows], is true for rows to search; None: all that are not deleted.
        """
        from endx_jax.ranking.search import Neighbours, no_neighbours

        where = snapshot.living if where is None else where
        k = min(k, int(np.count_nonzero(where)))
        if k == 0 or len(questions) == 0:
            return no_neighbours(len(questions), k)
        with self._lock:
            self.update(snapshot, self._generation != snapshot.generation)
            self._generation = snapshot.generation
            scores, rows = self.find(questions, k, None if where.all() else where)
        if (rows < 0).any():
            return snapshot.search(questions, k, where)
        return Neighbours(scores, rows.astype(np.int32))


class Faiss(Engine):
    """Engine of faiss, which must be installed.

    - `flat` compares every embedding, as the exact search does.
    - `ivf` puts embeddings into 4 sqrt(N) clusters, by k-means with a fixed seed, and searches an eighth of them, at
      least 8.
    - `hnsw` searches a graph of neighbours (Malkov and Yashunin 2018) with 32 links per node, 200 candidates during
      construction and at least 128 during search. Results may differ between builds, which use several threads.
    """

    def __init__(self, name: str):
        super().__init__()
        try:
            import faiss
        except ImportError:
            raise EndxError(f"the engine {name!r} needs faiss: pip install 'endx_jax[search]'") from None
        self._faiss, self._name = faiss, name
        self._index: Any = None

    def update(self, snapshot: "Snapshot", renumbered: bool) -> None:
        """Adds rows; an outgrown index of `ivf` is built again."""
        count = len(snapshot.living)
        outgrown = self._name == IVF and self._index and clusters(count) > OUTGROWN * self._index.nlist
        if renumbered or outgrown:
            self._index = self._empty(snapshot)
        while self._index.ntotal < count:
            start = self._index.ntotal
            self._index.add(snapshot.vectors(start, min(start + STEP, count)))

    def find(self, questions: np.ndarray, k: int, where: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Returns inner products and rows."""
        faiss, options = self._faiss, dict[str, Any]()
        if where is not None:
            options["sel"] = faiss.IDSelectorBitmap(np.packbits(where, bitorder="little"))
        if self._name == IVF:
            options["nprobe"] = max(8, self._index.nlist // 8)
        if self._name == HNSW:
            options["efSearch"] = max(128, 2 * k)
        kind = {FLAT: "SearchParameters", IVF: "SearchParametersIVF", HNSW: "SearchParametersHNSW"}[self._name]
        return self._index.search(questions, k, params=getattr(faiss, kind)(**options))

    def _empty(self, snapshot: "Snapshot"):
        """Returns an index without rows; clusters of `ivf` are trained."""
        faiss, count = self._faiss, len(snapshot.living)
        kind = {FLAT: "Flat", IVF: f"IVF{clusters(count)},Flat", HNSW: "HNSW32,Flat"}[self._name]
        index = faiss.index_factory(snapshot.info.width, kind, faiss.METRIC_INNER_PRODUCT)
        if self._name == HNSW:
            index.hnsw.efConstruction = 200
        if self._name == IVF:
            stride = max(1, count // (MOST_EACH * index.nlist))
            sample = [snapshot.vectors(start, min(start + STEP, count))[::stride] for start in range(0, count, STEP)]
            index.train(np.concatenate(sample))
        return index


def clusters(count: int) -> int:
    """Returns the number of clusters for `count` embeddings."""
    return max(1, min(4 * math.isqrt(count), count // FEWEST_EACH))


# Engines by the name that `TextSearch` and `--engine` take.
ENGINES: dict[str, Callable[[], Engine]] = {name: functools.partial(Faiss, name) for name in (FLAT, IVF, HNSW)}
