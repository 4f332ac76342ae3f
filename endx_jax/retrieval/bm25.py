"""BM25 over a fixed pool of texts, and over the documents of an index."""

import itertools
import logging
import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from endx_jax.data.languages import ENGLISH, detect
from endx_jax.errors import EndxError
from endx_jax.retrieval.snapshot import Snapshot
from endx_jax.retrieval.words import Words, WordTokenizer, describe_words, library

# Largest number of words of a question that are used: each adds a score to every document that contains it.
LONGEST = 10_000


class BM25:
    """An in-memory BM25 index over candidate texts.

    Words are those of `Tokenizer`. With tf the count of a word in a candidate, df the number of candidates that hold
    it, and N, l and l_mean the size of the pool, a candidate's length and the mean length in words, each occurrence of
    a word in the question adds

        ln(1 + (N - df + 0.5) / (df + 0.5)) * tf / (tf + k1 (1 - b + b l / l_mean)),  k1 = 0.9, b = 0.4

    (Kamphuis et al. 2020, "Lucene (accurate)", with Anserini's values of k1 and b).

    Args:
      words: words of N candidates, as `tokenizer.documents` splits them; at least one candidate has a word.
      tokenizer: splits the questions.
    """

    DESCRIPTION = "bm25s, Lucene's variant, k1 = 0.9, b = 0.4, English Snowball stemmer, no stop words removed"

    def __init__(self, words: Sequence[Words], tokenizer: WordTokenizer):
        bm25s = library("bm25s")
        # bm25s sets its own logger to DEBUG when it is imported.
        logging.getLogger("bm25s").setLevel(logging.WARNING)
        self._words = tokenizer
        self._index = bm25s.BM25(method="lucene", k1=0.9, b=0.4)
        vocabulary = {word: n for n, word in enumerate(dict.fromkeys(itertools.chain.from_iterable(words)))}
        documents = [Words(map(vocabulary.__getitem__, document), document.length) for document in words]
        self._index.index((documents, vocabulary), show_progress=False)

    @staticmethod
    def description(language: str) -> str:
        """Returns a line that describes the settings of BM25 for a language; `DESCRIPTION` is the line for English."""
        return BM25.DESCRIPTION.replace(describe_words(ENGLISH), describe_words(language))

    @classmethod
    def of_texts(cls, candidates: Sequence[str], language: str = "") -> "BM25":
        """Builds an index over N texts of a language; by default it is detected.

        Raises:
          EndxError: bm25s or PyStemmer is not installed, or no candidate holds a word.
        """
        tokenizer = WordTokenizer(language or detect(candidates))
        words = tokenizer.documents(candidates)
        if not any(map(any, words)):
            raise EndxError(f"BM25 finds no word in the {len(words)} candidates: check that data.path contains texts")
        return cls(words, tokenizer)

    def scores(self, questions) -> np.ndarray:
        """Returns scores of all candidates, float32 [b, N], for b question texts; all 0 if no word is known."""
        return self.score_block(questions)(0, len(questions))

    def score_block(self, questions):
        """Returns a scorer of blocks of questions, `(start, stop) -> float32 [stop - start, N]`, for `evaluate`."""
        words = [self._index.get_tokens_ids(question[:LONGEST]) for question in self._words(questions)]

        def score_block(start: int, stop: int) -> np.ndarray:
            return np.stack([self._index.get_scores_from_ids(question) for question in words[start:stop]])

        return score_block


def highest(scores: np.ndarray, k: int) -> np.ndarray:
    """Returns the positions of the k highest scores [N] above 0, best first; ties are ordered by position."""
    best = np.flatnonzero(scores > 0)
    if len(best) > k:
        best = best[scores[best] >= np.partition(scores[best], -k)[-k]]
    return best[np.argsort(-scores[best], kind="stable")[:k]]


def without_words(count: int, questions: int, language: str) -> list[str]:
    """Returns a line if more than half of the questions, `count`, share no word with any candidate."""
    return [
        f"{count:,} of {questions:,} questions share no word with any candidate, so BM25 can't rank for them: check "
        f"that both are in one language (words are cut as {language.title()}; data.language or --language changes it)"
    ] * (2 * count > questions)


# Texts that are split into words at a time.
STEP = 65536


class _Built(NamedTuple):
    snapshot: Snapshot
    rows: np.ndarray
    bm25: BM25 | None


class Lexical:
    """Ranks the documents of an index by BM25.

    A document's words are those of its text and its known questions. They are split once, at the first search; the
    statistics are computed again when the index has changed. Everything is in memory. Threads may share it.
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
        known, count = len(self._words), len(snapshot.living)
        for start in range(known, count, STEP):
            stop = min(start + STEP, count)
            documents = snapshot.read_documents(range(start, stop))
            found = (documents.get(row) for row in range(start, stop))
            texts = [" ".join([one.text, *one.questions]) if one else "" for one in found]
            self._words += self._tokenizer.documents(texts)
        rows = np.flatnonzero(snapshot.living)
        words = [self._words[row] for row in rows]
        return _Built(snapshot, rows, BM25(words, self._tokenizer) if any(map(any, words)) else None)
