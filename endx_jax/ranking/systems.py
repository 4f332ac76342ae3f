"""Evaluation of dense and lexical systems, from texts to metrics."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from endx_jax.data.batches.ragged import RaggedVectors
from endx_jax.data.sets.records import Pools
from endx_jax.inference.maxsim import maxsim_scores
from endx_jax.parallel.mesh import MeshSettings, make_mesh
from endx_jax.ranking.bm25 import BM25
from endx_jax.ranking.evaluate import Evaluation, ScoreBlock, evaluate_set
from endx_jax.ranking.search import Corpus, fits


def scores_of(questions: Any, candidates: Any, *, reverse: bool = False) -> ScoreBlock:
    """Returns the scorer of embeddings: `dense_scores` of [Q, E] and [N, E], or MaxSim of `RaggedVectors`.

    With `reverse` the first are those of answers, whose questions are ranked.
    """
    if isinstance(questions, RaggedVectors):
        return maxsim_scores(questions, candidates, reverse=reverse)
    return dense_scores(questions, candidates)


def mean_maxsim(questions: Any, scores: ScoreBlock) -> ScoreBlock:
    """Returns the scorer for `Hybrid`, whose weights are for cosines: MaxSim divided by the question's tokens."""
    if not isinstance(questions, RaggedVectors):
        return scores
    tokens = np.maximum(1, questions.lengths).astype(np.float32)[:, None]
    return lambda start, stop: scores(start, stop) / tokens[start:stop]


def dense_scores(questions: np.ndarray, candidates: np.ndarray) -> ScoreBlock:
    """Returns the scorer of questions [Q, E] by inner products with candidates [N, E], on one device, for `evaluate`.

    The candidates stay on the device if they fit: see `Corpus.scores`. Normalise embeddings first to score by cosine.

    Raises:
      EndxError: the two sides differ in width.
    """
    candidates, devices = np.asarray(candidates), jax.local_devices()[:1]
    mesh = make_mesh(MeshSettings(), devices)
    return Corpus(candidates, resident=fits(candidates.nbytes, devices), mesh=mesh).scores(questions)


# (side, texts) to what `scores_of` takes: float32 [n, E], of unit norm if embeddings are compared by cosine.
EncodeSide = Callable[[str, Sequence[str]], np.ndarray]


@dataclasses.dataclass(frozen=True, eq=False)
class DenseResult:
    """Evaluations of a dense system by pool, and its embeddings of the first pool.

    Attributes:
      evaluations: rankings of candidates by inner product.
      questions: float32 [Q, E], or `RaggedVectors`.
      candidates: float32 [N, E], or `RaggedVectors`.
      reverse: rankings of questions for each right candidate (`RetrievalSet.reversed`); empty if not requested.
      fused: rankings of candidates by the fused scores; empty if not requested.
    """

    evaluations: dict[str, Evaluation]
    questions: Any
    candidates: np.ndarray
    reverse: dict[str, Evaluation] = dataclasses.field(default_factory=dict)
    fused: dict[str, Evaluation] = dataclasses.field(default_factory=dict)


def evaluate_dense(
    encode: EncodeSide,
    pools: Pools,
    *,
    reverse: bool = False,
    fuse: Callable[[str, ScoreBlock], ScoreBlock] | None = None,
) -> DenseResult:
    """Encodes questions and candidates with `encode(side, texts)`, each once, and ranks each pool by inner product.

    One pool contains the questions and candidates of all others. With `reverse` the questions are also ranked for each
    candidate. With `fuse`, a function of a pool's name and its scores, candidates are also ranked by what it returns.
    """
    widest = max(pools.values(), key=lambda records: (len(records.candidates), len(records.questions)))
    vectors = {"question": encode("question", widest.questions), "answer": encode("answer", widest.candidates)}
    row = {
        "question": {name: n for n, name in enumerate(widest.question_ids)},
        "answer": {name: n for n, name in enumerate(widest.candidate_ids)},
    }

    def of(side: str, names: Sequence[str]) -> np.ndarray:
        rows = [row[side][name] for name in names]
        return vectors[side] if rows == [*range(len(vectors[side]))] else vectors[side][rows]

    evaluations, backwards, fused = {}, {}, {}
    for pool, part in pools.items():
        questions = of("question", part.question_ids)
        scores = scores_of(questions, of("answer", part.candidate_ids))
        evaluations[pool] = evaluate_set(scores, part)
        if fuse:
            fused[pool] = evaluate_set(fuse(pool, mean_maxsim(questions, scores)), part)
        if reverse:
            back = part.reversed()
            scores = scores_of(of("answer", back.question_ids), of("question", back.candidate_ids), reverse=True)
            backwards[pool] = evaluate_set(scores, back)
    questions, candidates = of("question", pools.primary.question_ids), of("answer", pools.primary.candidate_ids)
    return DenseResult(evaluations, questions, candidates, backwards, fused)


def bm25_scores(pools: Pools) -> dict[str, ScoreBlock]:
    """Returns BM25's scorer for each pool, `BM25.scaled_block`, for texts in the language of the primary pool."""
    index = functools.lru_cache(maxsize=2)(BM25.of_texts)  # several pools may share their candidates
    language = pools.primary.text_language
    return {pool: index(part.candidates, language).scaled_block(part.questions) for pool, part in pools.items()}
