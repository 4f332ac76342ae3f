"""Whole systems, from texts to an evaluation: what a line of a results table stands for."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from endx_jax.data.records import RetrievalSet
from endx_jax.retrieval.bm25 import BM25
from endx_jax.retrieval.dense import dense_scores
from endx_jax.retrieval.evaluate import Evaluation, evaluate

Encode = Callable[[str, Sequence[str]], np.ndarray]
# Questions ranked against different pools, by name, one of which holds the questions and the candidates of all.
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
    widest = max(pools.values(), key=lambda records: (len(records.candidates), len(records.questions)))
    vectors = {"question": encode("question", widest.questions), "answer": encode("answer", widest.candidates)}
    row = {
        "question": {name: n for n, name in enumerate(widest.question_ids)},
        "answer": {name: n for n, name in enumerate(widest.candidate_ids)},
    }

    def of(side: str, names: Sequence[str]) -> np.ndarray:
        return vectors[side][[row[side][name] for name in names]]

    def rank(asking: np.ndarray, ranked: np.ndarray, part: RetrievalSet) -> Evaluation:
        return evaluate(dense_scores(asking, ranked), part.qrels, candidates=len(part.candidates), depth=depth)

    evaluations, backwards = {}, {}
    for pool, part in pools.items():
        evaluations[pool] = rank(of("question", part.question_ids), of("answer", part.candidate_ids), part)
        if reverse:
            back = part.reversed()
            backwards[pool] = rank(of("answer", back.question_ids), of("question", back.candidate_ids), back)
    first = next(iter(pools.values()))
    return DenseResult(evaluations, of("question", first.question_ids), of("answer", first.candidate_ids), backwards)


def evaluate_bm25(pools: Pools, *, depth: int = 100) -> dict[str, Evaluation]:
    """Ranks each pool by stemmed BM25."""
    index = functools.lru_cache(maxsize=2)(BM25.of_texts)  # other questions may ask the same candidates
    return {
        pool: evaluate(
            index(part.candidates).score_block(part.questions),
            part.qrels,
            candidates=len(part.candidates),
            depth=depth,
        )
        for pool, part in pools.items()
    }
