"""Ranking of the passages of an index for texts: dense, by BM25, or both fused."""

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from endx_jax.data.batches.ragged import RaggedVectors
from endx_jax.index.approximate import EXACT, Faiss
from endx_jax.index.index_file import COSINE
from endx_jax.index.snapshot import Snapshot
from endx_jax.inference.maxsim import maxsim_of, pooled
from endx_jax.ranking.bm25 import BM25 as Bm25
from endx_jax.ranking.bm25 import highest
from endx_jax.ranking.hybrid import FUSED, Hybrid, Ranking, reciprocal_ranks
from endx_jax.ranking.rerank import finite_scores
from endx_jax.ranking.search import TOGETHER, Neighbours
from endx_jax.ranking.words import Words, WordTokenizer

DENSE, BM25, HYBRID = MODES = ("dense", "bm25", "hybrid")
# Texts that are split into words at a time.
STEP = 65536


class TextRanker:
    """Ranks the passages of snapshots of one index. Threads may share it."""

    def __init__(self, engine: str):
        """Takes `exact` or a name in `approximate.ENGINES`; nothing is built before it is needed."""
        self._engine: Callable[..., Neighbours] = Snapshot.search if engine == EXACT else Faiss(engine).search
        self._lexical = Lexical()

    def rank(
        self,
        snapshot: Snapshot,
        questions: Sequence[str],
        k: int,
        *,
        embeddings: np.ndarray | RaggedVectors | None,
        hybrid: Hybrid,
        mode: str,
        where: np.ndarray | None,
    ) -> Sequence[Ranking]:
        """Returns rows and scores of the best k documents of each question, as their best passages.

        Arguments are those of `Index.search`, with the rows to search, bool [rows], in place of the filter.
        """
        tokens = embeddings if isinstance(embeddings, RaggedVectors) else None
        dense = pooled(embeddings, cosine=snapshot.info.metric == COSINE)

        def rank(depth: int) -> Sequence[Ranking]:
            if mode == BM25:
                return self._lexical.rank(snapshot, questions, depth, where)
            depth = depth if mode == DENSE and tokens is None else max(depth, FUSED)
            rankings: Sequence[Ranking] = self._dense(snapshot, dense, depth, where, hybrid.known)
            by_words = self._lexical.rank(snapshot, questions, depth, where) if mode == HYBRID else []
            if tokens is not None:
                if mode == HYBRID:
                    rankings = [reciprocal_ranks(both)[:depth] for both in zip(rankings, by_words, strict=True)]
                rankings = _ranked_again(snapshot, tokens, rankings)
            if mode == HYBRID:
                rankings = [hybrid.fuse(*both, depth) for both in zip(rankings, by_words, strict=True)]
            return rankings

        return snapshot.best_documents(k, rank) if questions else []

    def _dense(
        self, snapshot: Snapshot, questions: np.ndarray, k: int, where: np.ndarray | None, weight: float
    ) -> list[Ranking]:
        """Ranks rows; a document's first row has at least the score of its best known question times the weight."""
        rankings: list[Ranking] = [*self._engine(snapshot, questions, k, where).rankings()]
        if not snapshot.known or not weight:
            return rankings
        known, best = snapshot.known, snapshot.known.scores(questions)
        # The first row of each known question's document; any row for a deleted one, whose score is -inf.
        first = np.minimum(np.searchsorted(snapshot.of, known.of), len(snapshot.of) - 1)
        for start in range(0, len(questions), TOGETHER):
            block = np.asarray(best(start, min(start + TOGETHER, len(questions))))
            block = block if where is None else np.where(where[first], block, -np.inf)
            for n, line in enumerate(block, start):
                scores = dict(rankings[n])
                for place in np.argpartition(-line, min(k, len(line)) - 1)[:k].tolist():
                    row, score = int(first[place]), weight * float(line[place])
                    if score > scores.get(row, -np.inf):
                        scores[row] = score
                rankings[n] = sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))[:k]
        return rankings


def _ranked_again(snapshot: Snapshot, questions: RaggedVectors, rankings: Sequence[Ranking]) -> list[Ranking]:
    """Ranks passages by MaxSim divided by the question's tokens, as `Hybrid` takes it; those deleted are omitted."""
    again: list[Ranking] = []
    for number, (question, ranking) in enumerate(zip(questions, rankings, strict=True)):
        stored = snapshot.token_vectors([row for row, _ in ranking])
        vectors = RaggedVectors.of([*stored.values()], snapshot.info.width).floats()
        scores = maxsim_of(question, vectors) / max(1, len(question))
        finite_scores(scores, [(number, row) for row in stored])
        again.append(sorted(zip(stored, scores.tolist(), strict=True), key=lambda pair: -pair[1]))
    return again


class _Built(NamedTuple):
    snapshot: Snapshot
    rows: np.ndarray
    bm25: Bm25 | None


class Lexical:
    """Ranks the passages of an index by BM25.

    A passage's words are those of its text; a document's first passage also has those of its known questions. They
    are split once, at the first search; the statistics are computed again when the index has changed. Everything is in
    memory. Threads may share it.
    """

    def __init__(self):
        self._tokenizer = WordTokenizer()
        self._words: list[Words] = []
        self._built: _Built | None = None
        self._lock = threading.Lock()

    def rank(
        self, snapshot: Snapshot, questions: Sequence[str], k: int, where: np.ndarray | None = None
    ) -> list[Ranking]:
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
        score_block = built.bm25.share_block(questions)  # one at a time: each needs a score for every document
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
        return _Built(snapshot, rows, Bm25(words, self._tokenizer) if any(map(any, words)) else None)
