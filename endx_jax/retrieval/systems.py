"""Whole systems, from texts to an evaluation: what a line of a results table stands for."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from endx_jax.data.records import RetrievalSet
from endx_jax.retrieval.bm25 import BM25
from endx_jax.retrieval.dense import dense_scores
from endx_jax.retrieval.evaluate import Evaluation, evaluate

Encode = Callable[[str, Sequence[str]], np.ndarray]
# The same questions ranked against different pools, by name, one of which holds the candidates of all.
Pools = Mapping[str, RetrievalSet]


@dataclasses.dataclass(frozen=True, eq=False)
class DenseResult:
    """Evaluations by pool, and the embeddings they rest on.

    Attributes:
      evaluations: of the ranking by inner product.
      questions: float32 [Q, E].
      candidates: float32 [N, E], the first pool.
      reverse: by pool, of the ranking of the questions for each candidate that is right for one: see
        `RetrievalSet.reversed`; empty where it was not asked for.
    """

    evaluations: dict[str, Evaluation]
    questions: np.ndarray
    candidates: np.ndarray
    reverse: dict[str, Evaluation] = dataclasses.field(default_factory=dict)


def evaluate_dense(encode: Encode, pools: Pools, *, depth: int = 100, reverse: bool = False) -> DenseResult:
    """Encodes questions and candidates with `encode(side, texts)`, each once, and ranks each pool by inner product.

    With `reverse` the questions are ranked for each candidate too.
    """
    widest = max(pools.values(), key=lambda records: len(records.candidates))
    questions, embeddings = encode("question", widest.questions), encode("answer", widest.candidates)
    row = {name: n for n, name in enumerate(widest.candidate_ids)}
    candidates = {pool: embeddings[[row[name] for name in part.candidate_ids]] for pool, part in pools.items()}
    evaluations = {
        pool: evaluate(
            dense_scores(questions, candidates[pool]), part.qrels, candidates=len(part.candidates), depth=depth
        )
        for pool, part in pools.items()
    }
    backwards = {
        pool: _evaluate_reverse(questions, candidates[pool], part, depth) for pool, part in pools.items() if reverse
    }
    return DenseResult(evaluations, questions, next(iter(candidates.values())), backwards)


def _evaluate_reverse(questions: np.ndarray, candidates: np.ndarray, records: RetrievalSet, depth: int) -> Evaluation:
    back = records.reversed()
    row = {name: n for n, name in enumerate(records.candidate_ids)}
    asking = candidates[[row[name] for name in back.question_ids]]
    return evaluate(dense_scores(asking, questions), back.qrels, candidates=len(questions), depth=depth)


def evaluate_bm25(pools: Pools, *, depth: int = 100) -> dict[str, Evaluation]:
    """Ranks each pool by stemmed BM25."""
    return {
        pool: evaluate(
            BM25.of_texts(part.candidates).score_block(part.questions),
            part.qrels,
            candidates=len(part.candidates),
            depth=depth,
        )
        for pool, part in pools.items()
    }
