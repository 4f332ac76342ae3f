"""The lexical baseline that every table shows."""

import functools
import logging

import numpy as np

from endx_jax.errors import EndxError


class Tokenizer:
    """Splits texts into words: runs of two or more word characters, lower-cased and stemmed; none is left out.

    Raises:
      EndxError: bm25s or PyStemmer is not installed.
    """

    def __init__(self):
        bm25s, stemmer = _libraries()
        self._split = functools.partial(
            bm25s.tokenize,
            stopwords=None,
            stemmer=stemmer.Stemmer("english"),
            return_ids=False,
            show_progress=False,
        )

    def __call__(self, texts) -> list[list[str]]:
        """The words of each text."""
        return self._split(list(texts))


class BM25:
    """An in-memory BM25 index over candidate texts.

    Words are what `Tokenizer` finds. With tf the count of a word in a candidate, df the number of candidates that hold
    it, and N, l and l_mean the size of the pool, a candidate's length and the mean length in words, each occurrence of
    a word in the question adds

        ln(1 + (N - df + 0.5) / (df + 0.5)) * tf / (tf + k1 (1 - b + b l / l_mean)),  k1 = 0.9, b = 0.4

    (Kamphuis et al. 2020, "Lucene (accurate)"; the values of k1 and b are Anserini's).

    Args:
      words: of N candidates, as `tokenizer` splits them; at least one holds a word.
      tokenizer: for the questions.
    """

    DESCRIPTION = "bm25s, Lucene's variant, k1 = 0.9, b = 0.4, English Snowball stemmer, no stop words removed"

    def __init__(self, words, tokenizer: Tokenizer):
        bm25s, _ = _libraries()
        self._words = tokenizer
        self._index = bm25s.BM25(method="lucene", k1=0.9, b=0.4)
        self._index.index(words, show_progress=False)

    @classmethod
    def of_texts(cls, candidates) -> "BM25":
        """An index over N texts.

        Raises:
          EndxError: bm25s or PyStemmer is not installed, or no candidate holds a word.
        """
        tokenizer = Tokenizer()
        words = tokenizer(candidates)
        if not any(words):
            raise EndxError(f"BM25 finds no word in any of the {len(words)} candidates: check what was read as text")
        return cls(words, tokenizer)

    def scores(self, questions) -> np.ndarray:
        """Scores of all candidates, float32 [b, N], for b question texts; 0 throughout where no word is known."""
        return self.score_block(questions)(0, len(questions))

    def score_block(self, questions):
        """Blocks of scores for `evaluate`: a function `(start, stop) -> float32 [stop - start, N]`."""
        words = [self._index.get_tokens_ids(question) for question in self._words(questions)]

        def score_block(start: int, stop: int) -> np.ndarray:
            return np.stack([self._index.get_scores_from_ids(question) for question in words[start:stop]])

        return score_block


def highest(scores: np.ndarray, k: int) -> np.ndarray:
    """The places of the k highest of scores [N] that are above 0, best first; of equal ones the first."""
    found = np.flatnonzero(scores > 0)
    if len(found) > k:
        found = found[scores[found] >= np.partition(scores[found], -k)[-k]]
    return found[np.argsort(-scores[found], kind="stable")[:k]]


def _libraries():
    try:
        import bm25s
        import Stemmer
    except ImportError as error:
        raise EndxError(f"BM25 needs the package {error.name}: pip install bm25s PyStemmer") from error
    # bm25s sets its own logger to DEBUG when it is imported.
    logging.getLogger("bm25s").setLevel(logging.WARNING)
    return bm25s, Stemmer
