"""BM25 over the documents of an index."""

import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from endx_jax.index.snapshot import Snapshot
from endx_jax.ranking.bm25 import BM25, highest
from endx_jax.ranking.words import Words, WordTokenizer

# Texts that are split into words at a time.
STEP = 65536


class _Built(NamedTuple):
    snapshot: Snapshot
    rows: np.ndarray
    bm25: BM25 | None


class Lexical:
    """Ranks the documents of an index by BM25.

    A passage's words are those of its text; a document's first passage also has those of its known questions. They
    are split once, at the first search; the statistics are computed again when the index has changed. Everything is in
    memory. Threads may share it.
    """

    def __init__(self):
        self._tokenizer = WordTokenizer()
        self._words: list[Words] = []
        self._built: _Built | None = None
        self._lock = threading.Lock()

    def search(
        self, snapshot: Snapshot, questions: Sequence[str], k: int, where: np.ndarray | None = None
    ) -> list[list[tuple[int, float]]]:
        """Finds up to k rows per question with their scores, best first; rows that share no word with it are omitted.

        `where`, bool [rows], is true for rows to search; None: all that are not deleted.

        Raises:
          EndxError: bm25s or PyStemmer is not installed.
        """
        with self._lock:
            if self._built is None or self._built.snapshot is not snapshot:
                self._built = self._build(snapshot)
            built = self._built
        if built.bm25 is None:
            return [[] for _ in questions]
        selected = 1 if where is None else where[built.rows]
        score_block = built.bm25.score_block(questions)  # one at a time: each needs a score for every document
        scores = (score_block(n, n + 1)[0] * selected for n in range(len(questions)))
        return [[(int(built.rows[n]), float(line[n])) for n in highest(line, k)] for line in scores]

    def _build(self, snapshot: Snapshot) -> _Built:
        """Builds the statistics of a snapshot; words are kept by row, whose text is constant within a generation."""
        if self._built is None or self._built.snapshot.generation != snapshot.generation:
            self._words = []
            if snapshot.info.language != self._tokenizer.language:
                self._tokenizer = WordTokenizer(snapshot.info.language)
        done, count = len(self._words), len(snapshot.living)
        for start in range(done, count, STEP):
            stop = min(start + STEP, count)
            documents = snapshot.read_documents(range(start, stop))
            listed = (documents.get(row) for row in range(start, stop))
            texts = [" ".join([one.text, *(one.questions if one.passage < 2 else ())]) if one else "" for one in listed]
            self._words += self._tokenizer.documents(texts)
        rows = np.flatnonzero(snapshot.living)
        words = [self._words[row] for row in rows]
        return _Built(snapshot, rows, BM25(words, self._tokenizer) if any(map(any, words)) else None)
