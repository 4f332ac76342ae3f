"""Exact precision-recall curve of all pairs of a question and a candidate (RR, section 3.1 and Table 7)."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import jax
import numpy as np

from endx_jax.ranking.evaluate import default_block


@dataclasses.dataclass(frozen=True, eq=False)
class PrecisionRecall:
    """Precision-recall curve, with a point for each distinct score of a right pair, from the highest down.

    Attributes:
      recall: float64 [K], share of the right pairs that reach the score.
      precision: float64 [K], share of right pairs among all pairs that reach the score.
      average_precision: sum over the points of precision times the increase of recall.
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
    """Computes the exact precision-recall curve of all Q * N pairs in one ranking (RR, section 3.1 and Table 7).

    Unlike MAP it requires scores that are comparable between questions. Pairs of equal score form one point, as in
    scikit-learn's `average_precision_score`. All scores are computed twice, a block at a time: first to collect those
    of right pairs, then to count the pairs that reach each. Memory grows with the right pairs and block * candidates.

    Args:
      score_block: `(start, stop)` -> scores [stop - start, N], as for `evaluate`; equal in both passes.
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
    reaching = np.zeros(len(points), np.int64)  # pairs that reach each score
    for _, _, scores in blocks():
        reaching += scores.size - np.searchsorted(np.sort(scores, axis=None), points)
    reached = np.cumsum(right[::-1])
    recall, precision = reached / len(rows), reached / reaching[::-1]
    gained = np.diff(recall, prepend=0.0)
    return PrecisionRecall(recall, precision, float(np.sum(gained * precision)))
