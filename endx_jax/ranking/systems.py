"""Evaluation of dense and lexical systems, from texts to metrics."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from endx_jax.data.batches.ragged import RaggedVectors
from endx_jax.data.sets.records import Pools
from endx_jax.errors import EndxError
from endx_jax.inference.maxsim import maxsim_scores
from endx_jax.ranking.bm25 import BM25
from endx_jax.ranking.evaluate import Evaluation, ScoreBlock, evaluate_set

Array = jax.Array

# Every product on a device has the shape [16, E] x [E, a multiple of 128]. The kernel of a matrix product, and with it
# the order of summation, depends on the shape: with one shape for all blocks, a question and a candidate give the same
# bits in each, and without remainder columns equal candidates give equal scores, so that ties are exact. 16 is the
# smallest block that `evaluate` chooses.
QUESTION_TILE = 16
CANDIDATE_MULTIPLE = 128


def scores_of(questions: Any, candidates: Any, *, reverse: bool = False) -> ScoreBlock:
    """Returns the scorer of embeddings: `dense_scores` of [Q, E] and [N, E], or MaxSim of `RaggedVectors`.

    With `reverse` the first are those of answers, whose questions are ranked.
    """
    if isinstance(questions, RaggedVectors):
        return maxsim_scores(questions, candidates, reverse=reverse)
    return dense_scores(questions, candidates)


def fusible(questions: Any, scores: ScoreBlock) -> ScoreBlock:
    """Returns the scorer for `Hybrid`, whose weights are for cosines: MaxSim divided by the question's tokens."""
    if not isinstance(questions, RaggedVectors):
        return scores
    tokens = np.maximum(1, questions.lengths).astype(np.float32)[:, None]
    return lambda start, stop: scores(start, stop) / tokens[start:stop]


def dense_scores(question_embeddings, candidate_embeddings):
    """Returns a function that computes inner products of blocks of questions, for `evaluate`.

    Products are float32 at the highest precision of the device (no TF32 or bfloat16 passes). Normalise the embeddings
    first to score by cosine.

    Args:
      question_embeddings: [Q, E], held on the host; a block at a time goes to the device.
      candidate_embeddings: [N, E], put on the device once; a JAX array sharded over a mesh stays sharded.

    Returns:
      A function `(start, stop) -> float32 [stop - start, N]`, whose values are the same for every choice of blocks.
      Another number of devices may change the last bit.

    Raises:
      EndxError: the two sides differ in width.
    """
    questions = np.asarray(question_embeddings, np.float32)
    candidates = jnp.asarray(candidate_embeddings, jnp.float32)
    if questions.shape[1] != candidates.shape[1]:
        raise EndxError(
            f"question embeddings are {questions.shape[1]} wide and candidate embeddings {candidates.shape[1]}: "
            "encode both with the same model"
        )
    count = candidates.shape[0]
    multiple = CANDIDATE_MULTIPLE * len(candidates.sharding.device_set)
    candidates = jnp.pad(candidates, ((0, -count % multiple), (0, 0)))

    def score_block(start: int, stop: int) -> Array:
        block = questions[start:stop]
        padded = np.pad(block, ((0, -len(block) % QUESTION_TILE), (0, 0)))
        return _products(padded, candidates, len(block), count)

    return score_block


@functools.partial(jax.jit, static_argnums=(2, 3))
def _products(questions, candidates, rows, columns):
    def product(tile):
        width = (((1,), (1,)), ((), ()))
        return jax.lax.dot_general(tile, candidates, width, precision=jax.lax.Precision.HIGHEST)

    tiles = questions.reshape(-1, QUESTION_TILE, questions.shape[1])
    scores = jax.lax.map(product, tiles).reshape(-1, candidates.shape[0])
    return scores[:rows, :columns]


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
        return vectors[side][[row[side][name] for name in names]]

    evaluations, backwards, fused = {}, {}, {}
    for pool, part in pools.items():
        questions = of("question", part.question_ids)
        scores = scores_of(questions, of("answer", part.candidate_ids))
        evaluations[pool] = evaluate_set(scores, part)
        if fuse:
            fused[pool] = evaluate_set(fuse(pool, fusible(questions, scores)), part)
        if reverse:
            back = part.reversed()
            scores = scores_of(of("answer", back.question_ids), of("question", back.candidate_ids), reverse=True)
            backwards[pool] = evaluate_set(scores, back)
    questions, candidates = of("question", pools.primary.question_ids), of("answer", pools.primary.candidate_ids)
    return DenseResult(evaluations, questions, candidates, backwards, fused)


def bm25_scores(pools: Pools) -> dict[str, ScoreBlock]:
    """Returns BM25's scorer for each pool, for texts in the language of the primary pool."""
    index = functools.lru_cache(maxsize=2)(BM25.of_texts)  # several pools may share their candidates
    language = pools.primary.text_language
    return {pool: index(part.candidates, language).score_block(part.questions) for pool, part in pools.items()}
