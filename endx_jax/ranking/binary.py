"""Search by one bit for each dimension of the candidates, whose best are ranked again by their int8 codes."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from endx_jax.ranking.search import Corpus, Neighbours, check_finite

# Candidates that are ranked again, at least. Of a million, the best 200 have all but 0.2 % of what 1,000 have.
FEWEST = 512
# The same for each candidate to find.
EACH = 4
# Questions whose candidates are in memory at a time.
QUESTIONS = 16384


class BinaryCorpus:
    """Corpus whose candidates are found by their signs, which have an eighth of the bytes of int8.

    It takes the place of a `ranking.search.Corpus`. Scores are those of int8 candidates, up to the last bit.
    """

    def __init__(
        self,
        signs: Any,
        codes: Any,
        scales: np.ndarray,
        where: np.ndarray | None = None,
        *,
        resident: bool = True,
        before: "BinaryCorpus | None" = None,
    ):
        """Sends the signs of a resident corpus to the devices; codes remain where they are.

        Args:
          signs: bits of the candidates, uint32 [N, W]: see `numerics.signs`.
          codes: int8 [N, E], which can be indexed by slices and by arrays of rows.
          scales: float32 [N].
          where: bool [N], true for candidates that count; None: all.
          resident: keep all signs on the devices.
          before: an earlier corpus, the beginning of this one.
        """
        self._codes, self._scales, self._where = codes, scales, where
        self._signs: Corpus = Corpus(
            signs, None, where, resident=resident, before=before._signs if before is not None else None
        )

    def search(self, questions: Any, k: int, where: np.ndarray | None = None) -> Neighbours:
        """Finds the best k >= 1 of the candidates that are best by signs; arguments and errors as `Corpus.search`."""
        questions, parts = np.asarray(questions, np.float32), []
        for start in range(0, max(1, len(questions)), QUESTIONS):
            asked = questions[start : start + QUESTIONS]
            rows = self._signs.search(asked, max(FEWEST, EACH * k), where).rows
            scores = np.empty(rows.shape, np.float32)
            for n, own in enumerate(rows):
                # Sums of rows, as a product of matrices may give equal candidates different bits.
                scores[n] = (self._codes[own] * asked[n]).sum(axis=1) * self._scales[own]
            best = np.lexsort((rows, -scores))[:, :k]
            largest = np.abs(scores).max(axis=1, keepdims=True, initial=0)
            parts.append([largest, *(np.take_along_axis(values, best, axis=1) for values in (scores, rows))])
        largest, *found = (np.concatenate(part) for part in zip(*parts, strict=True))
        check_finite(largest)
        return Neighbours(*found)

    def scores(self, questions: Any) -> Callable[[int, int], jax.Array]:
        """Returns the scorer of questions [Q, E] by the int8 codes of all candidates: see `Corpus.scores`."""
        return Corpus(self._codes, self._scales, self._where, resident=False).scores(questions)
