"""Exact evaluation of any scorer over a whole pool of candidates, a block of questions at a time."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from endx_jax import metrics
from endx_jax.data.batches.ragged import pad_rows
from endx_jax.data.sets.records import RetrievalSet
from endx_jax.errors import EndxError
from endx_jax.settings import check_choice, key, require


@dataclasses.dataclass(frozen=True)
class EvaluationSettings:
    """Settings of evaluation, `config.evaluation`."""

    metric: str = key(
        "mrr",
        "Validation metric that selects the best checkpoint, and that `train.patience` watches; higher is better: a "
        "measure of the validation split, such as mrr, of one of `sets`, such as nfcorpus:dev/ndcg@10, or the mean of "
        "all `sets`, such as mean/ndcg@10.",
    )
    sets: tuple[str, ...] = key(
        (),
        "Further validation sets, such as ('beir/nfcorpus:dev', 'faq.csv'): files or folders of any format, with their "
        "split after a colon if they have several. Each is named by the last part of its path and ranked in its own "
        "pool. A folder of BEIR folders is a suite: its value is the mean over its sets.",
    )
    reverse: bool = key(False, "Reports the ranking of questions for each answer as well (RR, Table 10).")
    min_questions: tuple[int, ...] = key(
        (8,),
        "Minimum numbers of questions per answer: for each, the report also ranks the questions whose answer has at "
        "least that many, in the whole pool and among those answers alone (ENDX, Table 4).",
        least=1,
        changes_results=False,
    )
    untrained: bool = key(
        True,
        "Ranks by the towers before training as well, and serves them where they are better in validation.",
        changes_results=False,
    )
    batch_size: int = key(
        64,
        "Texts of maximum length encoded together, over all devices; shorter texts are encoded in larger batches.",
        least=1,
        changes_results=False,
    )

    def __post_init__(self):
        names = self.names_of_sets
        own = f"evaluation.sets have the names {', '.join(names)}, the last parts of their paths: rename files"
        reserved = {MEAN, VALIDATION}
        differ = len({*names, *reserved}) == len(names) + len(reserved)
        require(differ, f"{own}, so that names differ from each other, {MEAN} and {VALIDATION}")
        source, _, measure = self.metric.rpartition("/")
        check_choice("the measure of evaluation.metric", measure, MEASURES)
        if source:
            require(bool(names), f"evaluation.metric={self.metric} names a set, and evaluation.sets is empty: set both")
            check_choice("the set of evaluation.metric", source, (*names, MEAN))

    @property
    def names_of_sets(self) -> tuple[str, ...]:
        """Names of `sets`, in their order."""
        return tuple(pathlib.PurePath(path).name for path in self.sets)


NDCG = "ndcg@10"  # the metric that depends on grades

# Reported metrics, by their names in tables and in results.json.
MEASURES: dict[str, Callable[..., jax.Array]] = {
    "mrr": metrics.reciprocal_rank,
    "mrr@10": functools.partial(metrics.reciprocal_rank, cutoff=10),
    "p@1": metrics.precision_at_1,
    **{f"recall@{n}": functools.partial(metrics.recall_at, n=n) for n in (1, 2, 5, 10, 20, 50, 100)},
    "avg_recall": metrics.average_recall,
    **{f"hit@{n}": functools.partial(metrics.hit_at, n=n) for n in (1, 5, 10)},
    NDCG: functools.partial(metrics.ndcg_at, n=10),
    "map": metrics.average_precision,
}

# In the names of metrics: the mean over all of `evaluation.sets`, and the split of questions for validation.
MEAN, VALIDATION = "mean", "validation"

BLOCK_BYTES = 64 * 2**20


# (start, stop) to scores [stop - start, N] of those questions.
ScoreBlock = Callable[[int, int], jax.Array | np.ndarray]


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluation:
    """Rankings of N candidates for Q questions.

    Attributes:
      values: value of each metric for every question, float32 [Q], fractions in [0, 1].
      ranks: float32 [Q, P], ranks of the right candidates, ascending; inf if a question has fewer than P.
      top_ids: int32 [Q, depth], the best candidates in order of score; ties are ordered by index.
      top_scores: float32 [Q, depth], their scores; -inf for candidates that are not ranked for the question.
      candidates: N.
    """

    values: dict[str, np.ndarray]
    ranks: np.ndarray
    top_ids: np.ndarray
    top_scores: np.ndarray
    candidates: int

    @functools.cached_property
    def metrics(self) -> dict[str, float]:
        """The mean over questions of each metric."""
        return {name: float(np.mean(values, dtype=np.float64)) for name, values in self.values.items()}

    @property
    def questions(self) -> int:
        """Number of questions."""
        return len(self.ranks)

    def per_question(self) -> Iterator[dict]:
        """Yields one row per question: its index `question`, its finite `ranks`, and the value of each metric."""
        for question, ranks in enumerate(self.ranks):
            row = {name: float(values[question]) for name, values in self.values.items()}
            yield {"question": question, "ranks": ranks[np.isfinite(ranks)].tolist(), **row}


def evaluate_scores(
    score_block: ScoreBlock,
    qrels: Sequence[Sequence[int]],
    *,
    candidates: int,
    gains: Sequence[Sequence[float]] | None = None,
    excluded: Sequence[Sequence[int]] | None = None,
    block: int | None = None,
    depth: int = 100,
) -> Evaluation:
    """Ranks the right candidates of every question in the whole pool, by the rule `endx_jax.metrics.TIE_RULE`.

    Memory grows with block * candidates and with questions * depth, not with questions * candidates.

    Args:
      score_block: scores of blocks of questions, compared as float32; see `dense_scores` and `BM25.score_block`.
      qrels: for each question the distinct indices of its right candidates.
      candidates: N, the size of the pool.
      gains: gains of the right candidates, in the order of `qrels`; None if all are 1.
      excluded: for each question the indices of candidates that are not ranked for it; None if there are none.
      block: questions scored at once; by default `default_block(candidates)`.
      depth: number of best candidates kept per question; the whole pool if it is smaller.

    Raises:
      EndxError: a question has no right candidate, a repeated one or one outside the pool; a score is nan.

    Examples:
      >>> from endx_jax.ranking.evaluate import evaluate_scores
      >>> scores = np.array([[0.9, 0.8, 0.1], [0.2, 0.7, 0.3]])
      >>> evaluation = evaluate_scores(lambda start, stop: scores[start:stop], qrels=[[1], [1]], candidates=3)
      >>> evaluation.metrics["mrr"], evaluation.metrics["recall@1"]  # ranks 2 and 1
      (0.75, 0.5)
    """
    positives = _positives(qrels, candidates)
    block = default_block(candidates) if block is None else block
    if block < 1 or depth < 1:
        raise EndxError(f"evaluation needs a block and a depth of at least 1: block {block}, depth {depth}")
    judged = None if gains is None else pad_rows(gains, 0, np.float32)
    left_out = None if excluded is None else pad_rows(excluded, -1, np.int32)
    ranked = []
    for start in range(0, len(positives), block):
        stop = min(start + block, len(positives))
        rows = [None if part is None else part[start:stop] for part in (positives, judged, left_out)]
        ranked.append(_rank_block(score_block(start, stop), rows, start, block, candidates, depth))
    ranks, top_scores, top_ids, *at_ranks = (np.concatenate(parts) for parts in zip(*ranked, strict=True))
    values = jax.device_get(_measure(ranks, None if judged is None else (at_ranks[0], judged)))
    return Evaluation({name: values[name] for name in MEASURES}, ranks, top_ids, top_scores, candidates)


def evaluate_set(score_block: ScoreBlock, records: RetrievalSet, *, depth: int = 100) -> Evaluation:
    """Ranks a retrieval set with its grades and exclusions: see `evaluate_scores`."""
    return evaluate_scores(
        score_block,
        records.qrels,
        candidates=len(records.candidates),
        gains=records.gains,
        excluded=records.excluded,
        depth=depth,
    )


def default_block(candidates: int) -> int:
    """Returns the largest power of two from 16 to 1024 whose float32 scores of the pool fit in 64 MB; else 16."""
    block = 1024
    while block > 16 and block * candidates * 4 > BLOCK_BYTES:
        block //= 2
    return block


@jax.jit
def _measure(ranks, gains) -> dict[str, jax.Array]:
    values = {name: measure(ranks) for name, measure in MEASURES.items()}
    return values if gains is None else values | {NDCG: MEASURES[NDCG](ranks, gains=gains[0], judged=gains[1])}


def _rank_block(scores, parts, start, block, candidates, depth):
    """Returns ranks [b, P], top scores and ids [b, depth] of one block, and with gains those at ranks, on the host."""
    rows = len(parts[0])  # of right candidates, and of their gains and excluded candidates, or None
    if scores.shape != (rows, candidates):
        raise ValueError(f"score_block({start}, {start + rows}) gave {scores.shape}, not {(rows, candidates)}")
    if rows < block:  # the last block is padded, so that all blocks run the same compiled program
        scores = jnp.pad(scores, ((0, block - rows), (0, 0)))
        padding = ((0, block - rows), (0, 0))
        parts = [part if part is None else np.pad(part, padding, constant_values=-1) for part in parts]
    has_nan, *results = (np.asarray(part)[:rows] for part in _rank(scores, *parts, min(depth, candidates)))
    if has_nan.any():
        raise EndxError(f"the scores of question {start + int(has_nan.argmax())} contain nan: check the embeddings")
    return results


@functools.partial(jax.jit, static_argnums=4)
def _rank(scores, positives, gains, excluded, depth):
    scores = scores.astype(jnp.float32)
    has_nan = jnp.isnan(scores).any(axis=1)

    def places(ids):  # padding becomes a column past the last one
        return jnp.arange(len(scores))[:, None], jnp.where(ids < 0, scores.shape[1], ids)

    if excluded is not None:
        scores = scores.at[places(excluded)].set(-jnp.inf, mode="drop")
    ranked = has_nan, metrics.ranks(scores, positives), *jax.lax.top_k(scores, depth)
    if gains is None:
        return ranked
    right = scores.at[places(positives)].get(mode="fill", fill_value=jnp.nan)
    return *ranked, metrics.ranked_gains(right, gains)


def _positives(qrels, candidates) -> np.ndarray:
    """Checks the judgements and returns them as int32 [Q, P], padded with -1."""
    if len(qrels) == 0:
        raise EndxError("there is no question to evaluate: the judgements are empty")
    for question, right in enumerate(qrels):
        if len(right) == 0:
            raise EndxError(f"question {question} has no right candidate in the pool: leave it out of the evaluation")
        if len(set(right)) != len(right):
            raise EndxError(f"question {question} names a right candidate twice: {list(right)}")
        if min(right) < 0 or max(right) >= candidates:
            outside = f"names right candidates outside the pool of {candidates}: {list(right)}"
            raise EndxError(f"question {question} {outside}; were the judgements read with another pool?")
    return pad_rows(qrels, -1, np.int32)
