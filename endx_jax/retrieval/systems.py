"""Whole systems, from texts to an evaluation: what a line of a results table stands for."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from endx_jax.data.records import RetrievalSet
from endx_jax.retrieval.bm25 import BM25
from endx_jax.retrieval.dense import dense_scores
from endx_jax.retrieval.evaluate import Evaluation, evaluate

Encode = Callable[[str, Sequence[str]], np.ndarray]


@dataclasses.dataclass(frozen=True, eq=False)
class DenseResult:
    """An evaluation and the embeddings it rests on.

    Attributes:
      evaluation: of the ranking by inner product.
      candidates: float32 [N, E], the encoded pool.
    """

    evaluation: Evaluation
    candidates: np.ndarray


def evaluate_dense(encode: Encode, records: RetrievalSet, *, depth: int = 100) -> DenseResult:
    """Encodes questions and pool with `encode(side, texts)` and ranks the pool by inner product."""
    questions = encode("question", records.questions)
    candidates = encode("answer", records.candidates)
    scores = dense_scores(questions, candidates)
    found = evaluate(scores, records.qrels, candidates=len(records.candidates), depth=depth)
    return DenseResult(found, candidates)


def evaluate_bm25(records: RetrievalSet, *, depth: int = 100) -> Evaluation:
    """Ranks the pool by stemmed BM25."""
    scores = BM25(records.candidates).score_block(records.questions)
    return evaluate(scores, records.qrels, candidates=len(records.candidates), depth=depth)
