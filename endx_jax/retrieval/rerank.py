"""Re-ranking: the best answers of a first stage, put in a new order by scores that are too dear for all of them."""

from collections.abc import Callable, Sequence

import numpy as np

from endx_jax.data.records import RetrievalSet
from endx_jax.retrieval.evaluate import Evaluation, evaluate
from endx_jax.retrieval.pair_scores import ScorePairs
from endx_jax.retrieval.text_search import Answer

# (start, stop) to scores [stop - start, N] of those questions: see `evaluate`.
ScoreBlock = Callable[[int, int], np.ndarray]


def evaluate_pairs(
    score: ScorePairs, first: ScoreBlock | None, records: RetrievalSet, *, top: int, depth: int = 100
) -> Evaluation:
    """Ranks the pool for every question: the `top` best of a first stage by pair scores, the others below as they were.

    Args:
      score: of pairs of the set's questions and candidates.
      first: the first stage's scores; None will do where `top` takes in the whole pool.
      records: the set.
      top: candidates that are scored a question; 0: the whole pool.
      depth: as in `evaluate`.

    Returns:
      What `evaluate` found. The scores of candidates that were not scored count down below the lowest that was.
    """
    count, candidates = len(records.questions), len(records.candidates)
    if first is None or not 0 < top < candidates:
        best = np.broadcast_to(np.arange(candidates), (count, candidates))
        scores = score(_pairs(best)).reshape(best.shape)
        return evaluate(lambda a, b: scores[a:b], records.qrels, candidates=candidates, depth=depth)
    best = evaluate(first, records.qrels, candidates=candidates, depth=top).top_ids
    scores = score(_pairs(best)).reshape(best.shape)

    def combined(start: int, stop: int) -> np.ndarray:
        below = _below(np.asarray(first(start, stop)), scores[start:stop].min(axis=1))
        np.put_along_axis(below, best[start:stop], scores[start:stop], axis=1)
        return below

    return evaluate(combined, records.qrels, candidates=candidates, depth=depth)


def rerank(score: ScorePairs, ranked: Sequence[Sequence[int]]) -> list[list[tuple[int, float]]]:
    """Puts each question's answers in the order of their scores.

    Args:
      score: of pairs of questions and answers.
      ranked: for each question the rows of its answers, by the first stage; of equal scores the earlier stays before.

    Returns:
      For each question its answers' (row, score), best first.
    """
    pairs = np.asarray([(question, row) for question, rows in enumerate(ranked) for row in rows], int).reshape(-1, 2)
    scores, results, start = score(pairs), [], 0
    for rows in ranked:
        own = scores[start : start + len(rows)]
        results.append([(rows[n], float(own[n])) for n in np.argsort(-own, kind="stable")])
        start += len(rows)
    return results


def rerank_answers(
    scores_of: Callable[[Sequence[str], Sequence[str]], ScorePairs],
    questions: Sequence[str],
    answers: Sequence[Sequence[Answer]],
    k: int,
) -> list[list[Answer]]:
    """The k best of the answers that a first stage found.

    Args:
      scores_of: (question texts, answer texts) to what scores their pairs: a `PairScorer` with its parameters.
      questions: Q texts.
      answers: to each question; what is compared is the documents' text.
      k: answers to keep.

    Returns:
      For each question answers with new ranks and scores.
    """
    documents = {answer.document.id: answer.document for found in answers for answer in found}
    row = {name: n for n, name in enumerate(documents)}
    score = scores_of(questions, [document.text for document in documents.values()])
    found = rerank(score, [[row[answer.document.id] for answer in own] for own in answers])
    known = [*documents.values()]
    return [[Answer(rank, score, known[row]) for rank, (row, score) in enumerate(own[:k], start=1)] for own in found]


def _pairs(best: np.ndarray) -> np.ndarray:
    """(question, candidate) of every entry of rows [Q, n], in order: int [Q n, 2]."""
    questions = np.broadcast_to(np.arange(len(best))[:, None], best.shape)
    return np.stack([questions.ravel(), best.ravel()], axis=1)


def _below(first: np.ndarray, lowest: np.ndarray) -> np.ndarray:
    """Scores [b, N] in the order and with the ties of `first` [b, N], all below the `lowest` [b] of their question.

    They are whole numbers counting down, which float32 tells apart as the first stage's own, moved, might not be.
    """
    below = np.empty(first.shape, np.float32)
    for row, own in enumerate(first):
        _, place = np.unique(-own, return_inverse=True)
        below[row] = np.floor(lowest[row]) - 1 - place
    return below
