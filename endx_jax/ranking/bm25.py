"""BM25 over a fixed pool of texts."""

import itertools
import logging
import math
from collections.abc import Sequence

import numpy as np

from endx_jax.data.languages import ENGLISH, detect
from endx_jax.errors import EndxError
from endx_jax.ranking.words import Words, WordTokenizer, describe_words, library

# Largest number of words of a question that are used: each adds a score to every document that contains it.
LONGEST = 10_000


class BM25:
    """An in-memory BM25 index over candidate texts.

    Words are those of `WordTokenizer`. With tf the count of a word in a candidate, df the number of candidates that
    hold it, and N, l and l_mean the size of the pool, a candidate's length and the mean length in words, each
    occurrence of a word in the question adds

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
        return self._block([*self._words(questions)])

    def share_block(self, questions):
        """Returns a scorer like `score_block`, of shares in [0, 1) of each question's highest possible score.

        That is the sum over its words of the factor ln(...), in which df is 0 for a word that no candidate holds. So
        shares of small and large pools, and of short and long questions, have one scale.
        """
        words = [*self._words(questions)]
        highest = [sum(map(self._rarity, question[:LONGEST])) for question in words]
        scale, block = np.maximum(np.array(highest, np.float32), 1e-6)[:, None], self._block(words)
        return lambda start, stop: block(start, stop) / scale[start:stop]

    def _block(self, words: Sequence[Sequence[str]]):
        """Returns the scorer of questions that are split into words."""
        numbers = [self._index.get_tokens_ids(question[:LONGEST]) for question in words]

        def score_block(start: int, stop: int) -> np.ndarray:
            return np.stack([self._index.get_scores_from_ids(question) for question in numbers[start:stop]])

        return score_block

    def _rarity(self, word: str) -> float:
        """Returns the factor of a word that depends on the number of candidates that hold it."""
        starts, number = self._index.scores["indptr"], self._index.vocab_dict.get(word, -1)
        held = 0 if number < 0 else int(starts[number + 1] - starts[number])
        return math.log(1 + (self._index.scores["num_docs"] - held + 0.5) / (held + 0.5))


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
        f"that both are in one language (words are cut as {language.title()}; data.language changes it)"
    ] * (2 * count > questions)
