"""Exact evaluation of any scorer over a whole pool of candidates, a block of questions at a time."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from endx_jax import metrics
from endx_jax.data.records import pad_ids
from endx_jax.errors import EndxError

# The measures that are reported, by the names that they have in tables and in results.json.
MEASURES: dict[str, Callable[..., jax.Array]] = {
    "mrr": metrics.reciprocal_rank,
    "mrr@10": functools.partial(metrics.reciprocal_rank, cutoff=10),
    "p@1": metrics.precision_at_1,
    **{f"recall@{n}": functools.partial(metrics.recall_at, n=n) for n in (1, 2, 5, 10, 20, 50, 100)},
    "avg_recall": metrics.average_recall,
    **{f"hit@{n}": functools.partial(metrics.hit_at, n=n) for n in (1, 5, 10)},
    "ndcg@10": functools.partial(metrics.ndcg_at, n=10),
    "map": metrics.average_precision,
}

BLOCK_BYTES = 64 * 2**20


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluation:
    """What `evaluate` found for Q questions over N candidates.

    Attributes:
      metrics: the mean over questions of each of `MEASURES`, fractions in [0, 1].
      ranks: float32 [Q, P], ranks of the right candidates, ascending, inf where a question has fewer than P.
      top_ids: int32 [Q, depth], the best candidates in order of score; of equal ones the lower index comes first.
      top_scores: float32 [Q, depth], their scores.
      questions: Q.
      candidates: N.
    """

    metrics: dict[str, float]
    ranks: np.ndarray
    top_ids: np.ndarray
    top_scores: np.ndarray
    questions: int
    candidates: int

    @classmethod
    def of(cls, ranks: np.ndarray, top_ids: np.ndarray, top_scores: np.ndarray, candidates: int) -> "Evaluation":
        """The evaluation with these ranks and best candidates."""
        values = jax.device_get(_measure(ranks))
        means = {name: float(np.mean(values[name], dtype=np.float64)) for name in MEASURES}
        return cls(means, ranks, top_ids, top_scores, len(ranks), candidates)

    def per_question(self) -> Iterator[dict]:
        """Yields a row a question: its index `question`, its finite `ranks`, and the value of each measure."""
        values = jax.device_get(_measure(self.ranks))
        for question, ranks in enumerate(self.ranks):
            row = {name: float(values[name][question]) for name in MEASURES}
            yield {"question": question, "ranks": ranks[np.isfinite(ranks)].tolist(), **row}


def evaluate(
    score_block: Callable[[int, int], jax.Array | np.ndarray],
    qrels: Sequence[Sequence[int]],
    *,
    candidates: int,
    block: int | None = None,
    depth: int = 100,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Ranks the right candidates of every question in the whole pool, by the rule `endx_jax.metrics.TIE_RULE`.

    Memory grows with block * candidates and with questions * depth, never with questions * candidates.

    Args:
      score_block: `(start, stop)` -> scores [stop - start, N] of those questions, NumPy or JAX, compared as float32;
        see `dense_scores` and `BM25.score_block`.
      qrels: for each question the distinct indices of its right candidates.
      candidates: N, the size of the pool.
      block: questions scored at once; by default the power of two from 16 to 1024 whose scores fit in 64 MB.
      depth: how many of the best candidates are kept for each question; the whole pool if it is smaller.
      progress: called after each block with the number of questions done and Q.

    Raises:
      EndxError: a question has no right candidate, a repeated one or one outside the pool; a score is nan.
    """
    positives = _positives(qrels, candidates)
    block = default_block(candidates) if block is None else block
    if block < 1 or depth < 1:
        raise EndxError(f"evaluation needs a block and a depth of at least 1: block {block}, depth {depth}")
    judged = []
    for start in range(0, len(positives), block):
        stop = min(start + block, len(positives))
        judged.append(_judge_block(score_block(start, stop), positives[start:stop], start, block, candidates, depth))
        if progress is not None:
            progress(stop, len(positives))
    ranks, top_scores, top_ids = (np.concatenate(parts) for parts in zip(*judged, strict=True))
    return Evaluation.of(ranks, top_ids, top_scores, candidates)


def default_block(candidates: int) -> int:
    """The largest power of two from 16 to 1024 whose float32 scores against the pool fit in 64 MB; 16 if none does."""
    block = 1024
    while block > 16 and block * candidates * 4 > BLOCK_BYTES:
        block //= 2
    return block


@jax.jit
def _measure(ranks) -> dict[str, jax.Array]:
    return {name: measure(ranks) for name, measure in MEASURES.items()}


def _judge_block(scores, positives, start, block, candidates, depth):
    """Ranks [b, P], top scores and top ids [b, depth] of one block, on the host."""
    rows = len(positives)
    if scores.shape != (rows, candidates):
        raise ValueError(f"score_block({start}, {start + rows}) gave {scores.shape}, not {(rows, candidates)}")
    if rows < block:  # the last block: padded, so that every block runs the same compiled program
        scores = jnp.pad(scores, ((0, block - rows), (0, 0)))
        positives = np.pad(positives, ((0, block - rows), (0, 0)), constant_values=-1)
    *found, unordered = (np.asarray(part)[:rows] for part in _judge(scores, positives, min(depth, candidates)))
    if unordered.any():
        raise EndxError(
            f"the scores of question {start + int(unordered.argmax())} hold nan, which has no rank: check the "
            "embeddings of that question and of the candidates for nan and inf"
        )
    return found


@functools.partial(jax.jit, static_argnums=2)
def _judge(scores, positives, depth):
    scores = scores.astype(jnp.float32)
    return metrics.ranks(scores, positives), *jax.lax.top_k(scores, depth), jnp.isnan(scores).any(axis=1)


def _positives(qrels, candidates) -> np.ndarray:
    """The judgements as int32 [Q, P], padded with -1."""
    if len(qrels) == 0:
        raise EndxError("there is no question to evaluate: the judgements are empty")
    for question, right in enumerate(qrels):
        if len(right) == 0:
            raise EndxError(f"question {question} has no right candidate in the pool: leave it out of the evaluation")
        if len(set(right)) != len(right):
            raise EndxError(f"question {question} names a right candidate twice: {list(right)}")
        if min(right) < 0 or max(right) >= candidates:
            raise EndxError(
                f"question {question} names right candidates outside the pool of {candidates}: {list(right)}; "
                "were the judgements read with another pool?"
            )
    return pad_ids(qrels)
