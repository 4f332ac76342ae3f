"""Precision and recall over all pairs of a question and a candidate, ordered by score (RR, section 3.1 and Table 7)."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import jax
import numpy as np

from endx_jax.retrieval.evaluate import default_block


@dataclasses.dataclass(frozen=True, eq=False)
class PrecisionRecall:
    """The curve, a point for each distinct score of a right pair, from the highest down.

    Attributes:
      recall: float64 [K], share of the right pairs that score at least so high.
      precision: float64 [K], share of right ones among all pairs that do.
      average_precision: sum over the points of precision times what recall gains.
    """

    recall: np.ndarray
    precision: np.ndarray
    average_precision: float


def precision_recall(
    score_block: Callable[[int, int], jax.Array | np.ndarray],
    qrels: Sequence[Sequence[int]],
    *,
    candidates: int,
    block: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> PrecisionRecall:
    """The exact curve of all Q * N pairs in one ranking.

    Unlike MAP it asks for scores that compare between questions. Pairs of equal score are taken together, as
    scikit-learn's `average_precision_score` does. All scores are made twice, a block at a time: first those of right
    pairs are looked at, then how many pairs reach each. Memory grows with the right pairs and block * candidates.

    Args:
      score_block: `(start, stop)` -> scores [stop - start, N], as for `evaluate`; the same both times.
      qrels: for each question the indices of its right candidates.
      candidates: N.
      block: questions scored at once; by default as in `evaluate`.
      progress: called after each block with the number of questions done and 2 Q.
    """
    count, done = len(qrels), 0
    step = block or default_block(candidates)
    lengths = np.array([len(right) for right in qrels])
    rows = np.repeat(np.arange(count), lengths)
    columns = np.fromiter((candidate for right in qrels for candidate in right), np.int64, len(rows))

    def blocks() -> Iterator[tuple[int, int, np.ndarray]]:
        nonlocal done
        for start in range(0, count, step):
            stop = min(start + step, count)
            yield start, stop, np.asarray(score_block(start, stop), np.float32)
            done += stop - start
            if progress is not None:
                progress(done, 2 * count)

    found = []
    for start, stop, scores in blocks():
        own = slice(*np.searchsorted(rows, (start, stop)))
        found.append(scores[rows[own] - start, columns[own]])
    points, right = np.unique(np.concatenate(found), return_counts=True)
    reaching = np.zeros(len(points), np.int64)  # pairs that score at least so high
    for _, _, scores in blocks():
        reaching += scores.size - np.searchsorted(np.sort(scores, axis=None), points)
    reached = np.cumsum(right[::-1])
    recall, precision = reached / len(rows), reached / reaching[::-1]
    gained = np.diff(recall, prepend=0.0)
    return PrecisionRecall(recall, precision, float(np.sum(gained * precision)))
