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
    """

    evaluations: dict[str, Evaluation]
    questions: np.ndarray
    candidates: np.ndarray


def evaluate_dense(encode: Encode, pools: Pools, *, depth: int = 100) -> DenseResult:
    """Encodes questions and candidates with `encode(side, texts)`, each once, and ranks each pool by inner product."""
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
    return DenseResult(evaluations, questions, next(iter(candidates.values())))


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
