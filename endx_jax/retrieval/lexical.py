"""BM25 over an index that changes."""

import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from endx_jax.retrieval.bm25 import BM25, Tokenizer, highest
from endx_jax.retrieval.snapshot import Snapshot


class _Built(NamedTuple):
    snapshot: Snapshot
    rows: np.ndarray
    bm25: BM25 | None


class Lexical:
    """Ranks the documents of an index by BM25.

    Documents are split into words once, when they are first asked for; the statistics are made anew when the index has
    changed. All of it is in memory. Threads may share it.
    """

    def __init__(self):
        self._tokenizer = Tokenizer()
        self._words: list[list[str]] = []
        self._built: _Built | None = None
        self._lock = threading.Lock()

    def search(self, snapshot: Snapshot, questions: Sequence[str], k: int) -> list[list[tuple[int, float]]]:
        """For each question up to k rows with their scores, best first; rows that share no word with it are left out.

        Raises:
          EndxError: bm25s or PyStemmer is not installed.
        """
        with self._lock:
            if self._built is None or self._built.snapshot is not snapshot:
                self._built = self._build(snapshot)
            built = self._built
        if built.bm25 is None:
            return [[] for _ in questions]
        score_block = built.bm25.score_block(questions)  # one by one: a score for every document takes room
        return [_best(score_block(n, n + 1)[0], built.rows, k) for n in range(len(questions))]

    def _build(self, snapshot: Snapshot) -> _Built:
        """Words of rows are kept by row; a row keeps its text for as long as the index lives."""
        known = len(self._words)
        fresh = [snapshot.document(row).text for row in range(known, len(snapshot.living))]
        self._words += self._tokenizer(fresh)
        rows = np.flatnonzero(snapshot.living)
        words = [self._words[row] for row in rows]
        return _Built(snapshot, rows, BM25(words, self._tokenizer) if any(words) else None)


def _best(scores: np.ndarray, rows: np.ndarray, k: int) -> list[tuple[int, float]]:
    return [(int(rows[at]), float(scores[at])) for at in highest(scores, k)]
