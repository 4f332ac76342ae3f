"""Approximate search by faiss, with engines that are built from an index on first use and saved in its folder."""

import hashlib
import math
import pathlib
import threading
from typing import Any

import numpy as np

from endx_jax.errors import EndxError
from endx_jax.retrieval.search import Neighbours, no_neighbours
from endx_jax.retrieval.snapshot import Snapshot

FLAT, IVF, HNSW = ENGINES = ("flat", "ivf", "hnsw")

# Rows passed to faiss at a time.
STEP = 65536
# Added rows stay in memory until they exceed this share of the file's rows; then the file is written again.
UNSAVED = 0.1
# The index is clustered again once it needs this many times as many clusters.
OUTGROWN = 2
# Training embeddings per cluster, at most and at least: faiss's defaults.
MOST_EACH, FEWEST_EACH = 256, 39
# Rows that are hashed in a fingerprint.
SAMPLE = 256


class Approximate:
    """One faiss engine over the embeddings of an index.

    - `flat` compares every embedding, as the exact search does.
    - `ivf` puts embeddings into 4 sqrt(N) clusters, by k-means with a fixed seed, and searches an eighth of them, at
      least 8.
    - `hnsw` searches a graph of neighbours (Malkov and Yashunin 2018) with 32 links per node, 200 candidates during
      construction and at least 128 during search. Results may differ between builds, which use several threads.

    The file name, `faiss-ENGINE-ROWS-FINGERPRINT.index`, gives the number of rows; a file is used only if its
    fingerprint matches the index. New rows are added to the engine, and deleted ones are skipped by a selector. When
    rows are renumbered, the engine is built again.
    """

    def __init__(self, folder: pathlib.Path, engine: str):
        """Stores the index's folder and the engine, a name in `ENGINES`; loads nothing yet."""
        self._folder, self._engine = folder, engine
        self._lock = threading.Lock()
        self._index: Any = None
        self._saved = self._generation = 0

    def search(self, snapshot: Snapshot, questions: np.ndarray, k: int) -> Neighbours:
        """Finds up to k rows for questions [Q, E]; where fewer are found, the row is -1.

        Raises:
          EndxError: faiss is not installed.
        """
        k = min(k, len(snapshot))
        if k == 0 or len(questions) == 0:
            return no_neighbours(len(questions), k)
        with self._lock:
            self._bring_up_to_date(snapshot)
            scores, rows = self._index.search(questions, k, params=self._parameters(snapshot, k))
        return Neighbours(scores, rows.astype(np.int32))

    def _bring_up_to_date(self, snapshot: Snapshot) -> None:
        count, generation = len(snapshot.living), snapshot.manifest.generation
        if self._index is None or generation != self._generation:
            self._saved, self._generation = 0, generation
            self._index = self._read(snapshot)
        outgrown = self._engine == IVF and self._index and clusters(count) > OUTGROWN * self._index.nlist
        if self._index is None or outgrown:
            self._index, self._saved = _empty(self._engine, snapshot), 0
        while self._index.ntotal < count:
            start = self._index.ntotal
            self._index.add(snapshot.vectors(start, min(start + STEP, count)))
        if count > self._saved * (1 + UNSAVED):
            self._save(snapshot)

    def _read(self, snapshot: Snapshot):
        """Reads the engine saved for these embeddings or the first of them; returns None if there is none."""
        for path in self._files():
            rows, fingerprint = path.stem.split("-")[2:]
            if int(rows) <= len(snapshot.living) and fingerprint == _fingerprint(snapshot, int(rows)):
                self._saved = int(rows)
                return _library(self._engine).read_index(str(path))
        return None

    def _save(self, snapshot: Snapshot) -> None:
        """Writes the file atomically and removes older ones."""
        rows, older = len(snapshot.living), self._files()
        path = self._folder / f"faiss-{self._engine}-{rows}-{_fingerprint(snapshot, rows)}.index"
        aside = path.with_suffix(".part")
        try:
            _library(self._engine).write_index(self._index, str(aside))
            aside.replace(path)
        except (OSError, RuntimeError):  # faiss raises the latter
            raise EndxError(f"can't write {path}: check that the folder is writable and the disk not full") from None
        finally:
            aside.unlink(missing_ok=True)
        for file in older:
            if file != path:
                file.unlink(missing_ok=True)
        self._saved = rows

    def _files(self) -> list[pathlib.Path]:
        return sorted(self._folder.glob(f"faiss-{self._engine}-*-*.index"))

    def _parameters(self, snapshot: Snapshot, k: int):
        faiss = _library(self._engine)
        options = {}
        if len(snapshot) < self._index.ntotal:
            options["sel"] = faiss.IDSelectorBitmap(np.packbits(snapshot.living, bitorder="little"))
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
    index = faiss.index_factory(snapshot.manifest.width, kind, faiss.METRIC_INNER_PRODUCT)
    if engine == HNSW:
        index.hnsw.efConstruction = 200
    if engine == IVF:
        stride = max(1, count // (MOST_EACH * index.nlist))
        sample = [snapshot.vectors(start, min(start + STEP, count))[::stride] for start in range(0, count, STEP)]
        index.train(np.concatenate(sample))
    return index


def _fingerprint(snapshot: Snapshot, rows: int) -> str:
    """Returns a hash that identifies the first `rows` embeddings of an index: of model, shape and a sample of rows."""
    manifest = snapshot.manifest
    digest = hashlib.sha256(
        repr((rows, manifest.generation, manifest.width, manifest.precision, manifest.model.get("identity"))).encode()
    )
    for row in sorted({*np.linspace(0, rows - 1, SAMPLE, dtype=int).tolist()}):
        digest.update(snapshot.vectors(row, row + 1).tobytes())
    return digest.hexdigest()[:16]


def _library(engine: str):
    try:
        import faiss
    except ImportError:
        raise EndxError(f"the engine {engine!r} needs faiss: pip install 'endx_jax[search]'") from None
    return faiss
