"""BM25 over texts whose words are counted once; scores follow from the counts of the texts that are left."""

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from endx_jax.data.batches.ragged import offsets_of
from endx_jax.data.languages import ENGLISH, detect
from endx_jax.errors import EndxError
from endx_jax.ranking.words import Words, WordTokenizer, describe_words

# Largest number of words of a question that are used: each adds a score to every document that contains it.
LONGEST = 10_000
K1, B = 0.9, 0.4
# Share of the texts above which the scores of a word are added to all of them, which is faster.
DENSE = 1 / 8
# Scores of words that are kept for later questions; with the numbers of their texts they take at most 1 GB.
KEPT = 2**27
# Texts of a part, whose words are in memory while they are counted.
PART = 2**19


class Postings(NamedTuple):
    """Counts of the words of N texts, word by word.

    Attributes:
      words: V words.
      numbers: position of each word in `words`.
      starts: int64 [V + 1]; word n occurs in `texts[starts[n]:starts[n + 1]]`.
      texts: int32 [P], positions of texts, ascending for each word.
      counts: unsigned [P], how often the word occurs in the text.
      lengths: int32 [N], numbers of words that count as the lengths of the texts.
    """

    words: Sequence[str]
    numbers: dict[str, int]
    starts: np.ndarray
    texts: np.ndarray
    counts: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of(cls, texts: Sequence[Words]) -> "Postings":
        """Counts the words of N texts, as `WordTokenizer.documents` splits them."""
        numbers: dict[str, int] = {}
        flat = itertools.chain.from_iterable(text.words for text in texts)
        words = np.fromiter((numbers.setdefault(word, len(numbers)) for word in flat), np.int64)
        places = np.repeat(np.arange(len(texts)), [len(text.words) for text in texts])
        pairs, counts = np.unique(words * len(texts) + places, return_counts=True)
        words, places = np.divmod(pairs, max(1, len(texts)))
        starts = np.searchsorted(words, np.arange(len(numbers) + 1))
        lengths = np.array([text.length for text in texts], np.int32)
        return cls([*numbers], numbers, starts, places.astype(np.int32), _narrow(counts), lengths)

    @classmethod
    def joined(cls, parts: Sequence["Postings"]) -> "Postings":
        """Returns the counts of the texts of several parts, one part after another."""
        if len(parts) == 1:
            return parts[0]
        words = [*dict.fromkeys(itertools.chain.from_iterable(part.words for part in parts))]
        numbers = {word: n for n, word in enumerate(words)}
        mapped = [np.array([numbers[word] for word in part.words], np.int32) for part in parts]
        of = np.concatenate([np.repeat(*pair) for pair in zip(mapped, (np.diff(p.starts) for p in parts), strict=True)])
        order = np.argsort(of, kind="stable")
        firsts = offsets_of([len(part.lengths) for part in parts]).astype(np.int32)
        texts = np.concatenate([part.texts + first for part, first in zip(parts, firsts, strict=False)])[order]
        counts = np.concatenate([part.counts for part in parts])[order]
        starts = offsets_of(np.bincount(of, minlength=len(numbers)))
        return cls(words, numbers, starts, texts, counts, np.concatenate([part.lengths for part in parts]))

    def of_word(self, word: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns the texts that hold a word, and how often each does."""
        number = self.numbers.get(word)
        of = slice(0) if number is None else slice(*self.starts[number : number + 2])
        return self.texts[of], self.counts[of]


class BM25:
    """BM25 of texts, whose words are those of `WordTokenizer`.

    With tf the count of a word in a text, df the number of texts that hold it, and N, l and l_mean the number of texts,
    a text's length and the mean length in words, each occurrence of a word in the question adds

        ln(1 + (N - df + 0.5) / (df + 0.5)) * tf / (tf + k1 (1 - b + b l / l_mean)),  k1 = 0.9, b = 0.4

    (Kamphuis et al. 2020, "Lucene (accurate)", with Anserini's values of k1 and b). The scores are those of bm25s up to
    the last bit. Threads may share it.

    Args:
      parts: counts of the words of N texts, in one or several parts.
      tokenizer: splits the questions.
      living: bool [N], true for texts that count; the others have the score 0. None: all.
    """

    # Identifies the settings in models and results.
    DESCRIPTION = "bm25s, Lucene's variant, k1 = 0.9, b = 0.4, English Snowball stemmer, no stop words removed"

    def __init__(self, parts: Sequence[Postings], tokenizer: WordTokenizer, living: np.ndarray | None = None):
        self._parts, self._tokenizer, self._living = parts, tokenizer, living
        self._firsts = offsets_of([len(part.lengths) for part in parts]).astype(np.int32)
        self._lengths = parts[0].lengths if len(parts) == 1 else np.concatenate([part.lengths for part in parts])
        counted = self._lengths if living is None else self._lengths[living]
        self._count, self._mean = len(counted), counted.mean() if counted.any() else 1.0
        self._known: dict[str, tuple[Any, np.ndarray, float]] = {}  # columns of the words of earlier questions
        self._kept = 0  # number of their scores

    @staticmethod
    def description(language: str) -> str:
        """Returns a line that describes the settings of BM25 for a language; `DESCRIPTION` is the line for English."""
        return BM25.DESCRIPTION.replace(describe_words(ENGLISH), describe_words(language))

    @classmethod
    def of_texts(cls, candidates: Sequence[str], language: str = "") -> "BM25":
        """Counts the words of N texts of a language; by default it is detected.

        Raises:
          EndxError: PyStemmer is not installed, or no candidate holds a word.
        """
        tokenizer = WordTokenizer(language or detect(candidates))
        starts = range(0, len(candidates), PART)
        parts = [Postings.of(tokenizer.documents(candidates[start : start + PART])) for start in starts]
        if not any(part.words for part in parts):
            raise EndxError(
                f"BM25 finds no word in the {len(candidates)} candidates: check that data.path contains texts"
            )
        return cls(parts, tokenizer)

    def scores(self, questions) -> np.ndarray:
        """Returns scores of all candidates, float32 [b, N], for b question texts; all 0 if no word is known."""
        return self.score_block(questions)(0, len(questions))

    def score_block(self, questions):
        """Returns a scorer of blocks of questions, `(start, stop) -> float32 [stop - start, N]`, for `evaluate`."""
        return self._block(self._split(questions))

    def scaled_block(self, questions):
        """Returns a scorer like `score_block`, of scores over the square root of each question's highest possible one.

        That is the sum over its words of the factor ln(...), in which df is 0 for a word that no candidate holds. So
        one weight suits small and large pools, and short and long questions (docs/results.md compares scales).
        """
        words = self._split(questions)
        highest = [sum(self._column(word)[2] for word in question) for question in words]
        scale, block = np.sqrt(np.maximum(np.array(highest, np.float32), 1e-6))[:, None], self._block(words)
        return lambda start, stop: block(start, stop) / scale[start:stop]

    def _split(self, questions) -> list[Sequence[str]]:
        """Returns the words of each question that are used."""
        return [question[:LONGEST] for question in self._tokenizer(questions)]

    def _block(self, words: Sequence[Sequence[str]]):
        """Returns the scorer of questions that are split into words."""

        def score_block(start: int, stop: int) -> np.ndarray:
            scores = np.zeros((stop - start, len(self._lengths)), np.float32)
            for line, question in zip(scores, words[start:stop], strict=True):
                for word in question:
                    texts, values, _ = self._column(word)
                    line[texts] += values
            return scores

        return score_block

    def _column(self, word: str) -> tuple[Any, np.ndarray, float]:
        """Returns the texts that hold a word, or all, their scores for it, and its factor ln(...)."""
        if known := self._known.get(word):
            return known
        found = [part.of_word(word) for part in self._parts]
        texts, counts = found[0]
        if len(found) > 1:
            texts = np.concatenate([of + first for (of, _), first in zip(found, self._firsts, strict=False)])
            counts = np.concatenate([counts for _, counts in found])
        if self._living is not None:
            kept = self._living[texts]
            texts, counts = texts[kept], counts[kept]
        rarity = math.log(1 + (self._count - len(texts) + 0.5) / (len(texts) + 0.5))
        if not len(texts):
            return texts, np.zeros(0, np.float32), rarity
        idf = np.float32(rarity)  # rounded to float32 where bm25s does
        values = (idf * (counts / (K1 * (1 - B + B * self._lengths[texts] / self._mean) + counts))).astype(np.float32)
        column: tuple[Any, np.ndarray, float] = texts, values, rarity
        if len(texts) > DENSE * len(self._lengths):
            column = slice(None), np.zeros(len(self._lengths), np.float32), rarity
            column[1][texts] = values
        self._kept += len(column[1])
        if self._kept > KEPT:
            self._known, self._kept = {}, len(column[1])
        self._known[word] = column
        return column


def _narrow(counts: np.ndarray) -> np.ndarray:
    """Returns counts in the smallest type that holds them."""
    return counts.astype(np.min_scalar_type(int(counts.max(initial=0))))


def highest(scores: np.ndarray, k: int, above: float = 0.0) -> np.ndarray:
    """Returns the positions of the k highest scores [N] over `above`, best first; ties are ordered by position."""
    best = np.flatnonzero(scores > above)
    if len(best) > k:
        best = best[scores[best] >= np.partition(scores[best], -k)[-k]]
    return best[np.argsort(-scores[best], kind="stable")[:k]]


def without_words(count: int, questions: int, language: str) -> list[str]:
    """Returns a line if more than half of the questions, `count`, share no word with any candidate."""
    return [
        f"{count:,} of {questions:,} questions share no word with any candidate, so BM25 can't rank for them: check "
        f"that both are in one language (words are cut as {language.title()}; data.language changes it)"
    ] * (2 * count > questions)
