"""Re-ranking of the best answers of a first stage by a pair scorer that is too expensive for the whole pool."""

from collections.abc import Callable, Sequence

import numpy as np

from endx_jax.data.sets.documents import FoundDocument
from endx_jax.data.sets.records import RetrievalSet
from endx_jax.errors import EndxError
from endx_jax.ranking.evaluate import Evaluation, ScoreBlock, evaluate_set

# (question, answer) rows, int [n, 2], to scores float32 [n].
PairScorer = Callable[[np.ndarray], np.ndarray]
# (question texts, answer texts) to the scorer of their pairs, given by rows.
PairScorerFactory = Callable[[Sequence[str], Sequence[str]], PairScorer]


def finite_scores(scores: np.ndarray, pairs: Sequence | np.ndarray) -> np.ndarray:
    """Returns the scores [n] of pairs; raises EndxError if one is not finite, since its rank would be undefined."""
    if not (finite := np.isfinite(scores)).all():
        question, row = pairs[int(finite.argmin())]
        raise EndxError(f"the score of question {question} and candidate {row} is not finite: use another model")
    return scores


def score_lists(score: PairScorer, rows: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """Scores the answers of each question, which are given by rows; raises EndxError if a score is not finite."""
    pairs = np.asarray([(question, row) for question, own in enumerate(rows) for row in own], int).reshape(-1, 2)
    return np.split(finite_scores(score(pairs), pairs), np.cumsum([len(own) for own in rows])[:-1])


def evaluate_pairs(
    score: PairScorer, first: ScoreBlock | None, records: RetrievalSet, *, top: int, depth: int = 100
) -> Evaluation:
    """Ranks the pool for every question: the `top` best of a first stage by pair scores, then the others in its order.

    Args:
      score: scores pairs of the set's questions and candidates.
      first: scores of the first stage; may be None if `top` covers the whole pool.
      records: data set.
      top: candidates per question that are scored; 0: the whole pool.
      depth: as in `evaluate`.

    Returns:
      The result of `evaluate`. Candidates without a pair score get decreasing whole numbers below the lowest one.
    """
    count, candidates = len(records.questions), len(records.candidates)
    if first is None or not 0 < top < candidates:
        best = np.broadcast_to(np.arange(candidates), (count, candidates))
        scores = score(_pairs(best)).reshape(best.shape)
        return evaluate_set(lambda a, b: scores[a:b], records, depth=depth)
    best = evaluate_set(first, records, depth=top).top_ids
    scores = score(_pairs(best)).reshape(best.shape)

    def combined(start: int, stop: int) -> np.ndarray:
        below = _shifted_below(np.asarray(first(start, stop)), scores[start:stop].min(axis=1))
        np.put_along_axis(below, best[start:stop], scores[start:stop], axis=1)
        return below

    return evaluate_set(combined, records, depth=depth)


def rerank_answers(
    scores_of: PairScorerFactory,
    questions: Sequence[str],
    answers: Sequence[Sequence[FoundDocument]],
    k: int,
) -> list[list[FoundDocument]]:
    """Returns the k best of the answers that a first stage found for each question, with new ranks and scores.

    The texts of their documents are scored. The order of the first stage orders ties.
    """
    documents = {answer.document.name: answer.document for ranked in answers for answer in ranked}
    row = {name: n for n, name in enumerate(documents)}
    score = scores_of(questions, [document.text for document in documents.values()])
    scores = score_lists(score, [[row[answer.document.name] for answer in ranked] for ranked in answers])
    return [
        [FoundDocument(rank, float(values[n]), ranked[n].document) for rank, n in enumerate(best, start=1)]
        for ranked, values in zip(answers, scores, strict=True)
        for best in [np.argsort(-values, kind="stable")[:k].tolist()]
    ]


def _pairs(best: np.ndarray) -> np.ndarray:
    """Returns (question, candidate) of every entry of rows [Q, n], in order: int [Q n, 2]."""
    questions = np.broadcast_to(np.arange(len(best))[:, None], best.shape)
    return np.stack([questions.ravel(), best.ravel()], axis=1)


def _shifted_below(first: np.ndarray, lowest: np.ndarray) -> np.ndarray:
    """Returns scores [b, N] with the order and ties of `first` [b, N], all below the `lowest` [b] of their question."""
    below = np.empty(first.shape, np.float32)  # whole numbers: shifted scores could become equal in float32
    for row, values in enumerate(first):
        _, place = np.unique(-values, return_inverse=True)
        below[row] = np.floor(lowest[row]) - 1 - place
    return below
