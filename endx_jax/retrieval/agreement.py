"""How near to each other the questions of one answer lie: SSE, Table 3 of Yu et al. (2020)."""

from collections.abc import Sequence

import numpy as np

from endx_jax.data.records import askers
from endx_jax.numerics import unit_rows


def question_agreement(question_embeddings, qrels: Sequence[Sequence[int]], *, fewest: int = 8) -> dict[str, float]:
    """The mean squared distance of two questions of the same answer, beside that of any two questions.

    The paper calls the first SSE, "the sum of squared distances [...] between two different questions aligned to same
    answer", and does not say over what it is summed or averaged. Here each pair of two questions of an answer counts
    once, and the mean is over all pairs of all those answers, on the unit sphere: a squared distance is 2 - 2 cosine. A
    small SSE alone is no merit: in a space where all questions lie together it is small too, hence the other mean.

    Args:
      question_embeddings: float [Q, E].
      qrels: the right candidates of each question.
      fewest: questions that an answer must have to be looked at, at least 2 (the paper: 8, or more than 8, or 10).

    Returns:
      `answers` and `questions` that were looked at (a question with several answers counts with each); `sse`, the mean
      over pairs with an answer in common; `sse_any`, over all pairs of all questions; both in [0, 4]. Empty where no
      answer has so many questions.
    """
    questions = unit_rows(np.asarray(question_embeddings, np.float64))
    groups = [questions[rows] for rows in askers(qrels).values() if len(rows) >= max(fewest, 2)]
    if not groups:
        return {}
    distances, pairs = np.sum([_pairwise(group) for group in groups], axis=0)
    of_all, all_pairs = _pairwise(questions)
    return {
        "answers": len(groups),
        "questions": sum(map(len, groups)),
        "sse": float(distances / pairs),
        "sse_any": float(of_all / all_pairs),
    }


def _pairwise(points: np.ndarray) -> tuple[float, int]:
    """The sum of squared distances of all pairs of points [n, E], and how many pairs there are.

    sum_{i<j} |x_i - x_j|^2 = n sum_i |x_i - m|^2, where m is their mean.
    """
    count = len(points)
    return count * float(np.sum(np.square(points - points.mean(axis=0)))), count * (count - 1) // 2
