"""Hybrid search: dense and BM25 scores in one ranking."""

import dataclasses
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from endx_jax.data.sets.records import RetrievalSet
from endx_jax.ranking.bm25 import BM25
from endx_jax.ranking.evaluate import ScoreBlock, evaluate_set
from endx_jax.settings import require

Ranking = Sequence[tuple[int, float]]

# Default weights of BM25 beside a cosine and of known questions, the best in the mean of those that lose on no English
# domain of the choosing half beyond the interval (docs/results.md).
WEIGHT, KNOWN_WEIGHT = 0.08, 0.65
# Weights that `fit_fusion` and `fit_known` compare; the first is the model alone.
GRID = (0.0, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.12, 0.15, 0.2, 0.25, 0.3, 0.5, 0.7, 1.2, 2.4)
KNOWN = (0.0, 0.5, 0.6, 0.65, 0.7, 0.8, 0.9, 0.95, 1.0, 1.1)
# Smallest number of validation questions for which weights are compared with dense scores alone.
ENOUGH = 100
# With fewer, they are compared with the default, which is left only for a gain of more than so many standard errors.
FEW_ERRORS = 2.0
# Smallest number of documents of each ranking that are fused; lower ones hardly affect the top.
FUSED = 100
# Chosen by Cormack et al. (2009) on pilot runs; results hardly depend on it.
RRF_K = 60
# Ends the description of BM25's settings.
SCALE = ", over the square root of the highest possible score"


@dataclasses.dataclass(frozen=True)
class Hybrid:
    """Fusion of dense and BM25 scores: score = dense + weight * BM25.

    A dense score is the higher one of the document's own and `known` times that of its best known question. BM25's
    are divided by the square root of the question's highest possible one (`BM25.scaled_block`).

    Attributes:
      weight: weight of BM25, at least 0; None: the sum of reciprocal ranks, for scores that are not cosines.
      questions: number of validation questions that `fit_fusion` used; 0 for the default.
      bm25: settings of BM25 for which the weight holds.
      known: weight of known questions, at least 0; 0: only BM25 reads them.
    """

    weight: float | None = WEIGHT
    questions: int = 0
    bm25: str = f"{BM25.DESCRIPTION}{SCALE}"
    known: float = KNOWN_WEIGHT

    def __post_init__(self):
        valid = self.weight is None or 0 <= self.weight < math.inf
        require(valid, f"the weight of BM25 must be a number from 0 up, and is {self.weight}")
        require(0 <= self.known < math.inf, f"the weight of known questions must be from 0 up, and is {self.known}")

    def __str__(self) -> str:
        if self.weight is None:
            return "the sum of reciprocal ranks in dense and BM25"
        unfitted = "the default" if self.weight == WEIGHT else "given"
        chosen = f"fitted on {self.questions:,} validation questions" if self.questions else unfitted
        return f"dense + {self.weight:.2f} x BM25 (weight: {chosen})"

    def score_block(self, dense: ScoreBlock, lexical: ScoreBlock) -> ScoreBlock:
        """Returns the scorer of all candidates, for `evaluate`, from those of dense and BM25 scores."""

        def fused(start: int, stop: int):
            if self.weight is None:
                return _reciprocals(dense(start, stop), -np.inf) + _reciprocals(lexical(start, stop), 0)
            return dense(start, stop) + self.weight * lexical(start, stop)

        return fused

    def with_known_questions(self, dense: ScoreBlock, known: ScoreBlock) -> ScoreBlock:
        """Returns the scorer by the higher of dense scores and known questions' scores times `self.known`."""
        if not self.known:
            return dense
        return lambda start, stop: np.maximum(dense(start, stop), self.known * known(start, stop))

    def fuse(self, dense: Ranking, lexical: Ranking, depth: int) -> list[tuple[int, float]]:
        """Fuses two rankings, pairs of item and score, best first, of at most `depth` items each.

        An item that one ranking lacks gets that ranking's lowest score; from BM25 it gets 0 if that ranking is shorter
        than `depth`, and so holds all items with a common word. Ties are in the order of `dense`, then of `lexical`.
        """
        if self.weight is None:
            return reciprocal_ranks([dense, lexical])
        meaning, words = dict(dense), dict(lexical)
        lowest = dense[-1][1] if dense else 0.0
        fewest = lexical[-1][1] if len(lexical) >= depth else 0.0
        return _ordered(
            {item: meaning.get(item, lowest) + self.weight * words.get(item, fewest) for item in meaning | words}
        )


def default_hybrid(*, cosine: bool) -> Hybrid:
    """Returns the fusion if none was fitted; without cosines, known questions have the weight 0."""
    return Hybrid(WEIGHT) if cosine else Hybrid(None, known=0.0)


def surest(values: Sequence[np.ndarray], standard_errors: float = 1.0) -> int:
    """Returns which of W systems gains most surely over the first one, given their metric for the same Q questions [Q].

    It is the one with the highest lower end of its mean gain, the mean minus so many `standard_errors`; 0, the first
    system, if no other one's is above 0. From dense scores alone, on several domains, the mean itself lost more where
    BM25 does not help, and a wider interval gained less where it does (docs/results.md).
    """
    gains = np.asarray(values, np.float64) - np.asarray(values[0], np.float64)
    return int(np.argmax(gains.mean(axis=1) - standard_errors * gains.std(axis=1) / math.sqrt(gains.shape[1])))


def fit_fusion(dense: ScoreBlock, lexical: ScoreBlock, records: RetrievalSet, measure: str, *, cosine: bool) -> Hybrid:
    """Returns the fusion of dense scores and BM25 that is chosen by `measure` on validation questions.

    It is the one that gains most surely over dense scores alone. With fewer than `ENOUGH` questions it is the default,
    unless another fusion gains clearly over it, as with texts in a language that the model does not know. `lexical`
    scores by `BM25.scaled_block`. The weight is chosen from `GRID` for cosines; for other scores, reciprocal ranks or
    dense scores alone are chosen.
    """
    default, few = default_hybrid(cosine=cosine), len(records.questions) < ENOUGH
    about = f"{BM25.description(records.text_language)}{SCALE}"
    fitted = dataclasses.replace(default, questions=len(records.questions), bm25=about)
    tried = [default] if few else []
    tried += [dataclasses.replace(fitted, weight=weight) for weight in (GRID if cosine else (0.0, None))]
    ranked = (evaluate_set(hybrid.score_block(dense, lexical), records) for hybrid in tried)
    return tried[surest([evaluation.values[measure] for evaluation in ranked], FEW_ERRORS if few else 1.0)]


def fit_known(hybrid: Hybrid, dense, known, lexical, records: RetrievalSet, measure: str) -> Hybrid:
    """Returns the fusion whose weight of known questions gains most surely over none, for other questions.

    `known` scores the best known question of each candidate; `lexical` is BM25 of candidates with known questions.
    """
    tried = [dataclasses.replace(hybrid, known=weight) for weight in KNOWN]
    scorers = (one.score_block(one.with_known_questions(dense, known), lexical) for one in tried)
    return tried[surest([evaluate_set(scores, records).values[measure] for scores in scorers])]


def reciprocal_ranks(rankings: Sequence[Ranking]) -> list[tuple[int, float]]:
    """Fuses rankings by reciprocal ranks (Cormack, Clarke and Buettcher 2009), for scores that can't be compared.

    The score of an item is the sum of 1 / (RRF_K + r) over the rankings that hold it, with its rank r there, from 1.
    Ties are in the order of the first ranking that holds the item.
    """
    fused: dict[int, float] = {}
    for ranking in rankings:
        for place, (item, _) in enumerate(ranking, start=1):
            fused[item] = fused.get(item, 0.0) + 1 / (RRF_K + place)
    return _ordered(fused)


def _ordered(fused: dict[int, float]) -> list[tuple[int, float]]:
    return sorted(fused.items(), key=lambda pair: -pair[1])


def _reciprocals(scores: jax.Array | np.ndarray, above: float) -> np.ndarray:
    """Returns 1 / (RRF_K + rank) for the `FUSED` best scores [b, N] if they exceed `above`; 0 for all others."""
    best, ids = map(np.asarray, jax.lax.top_k(jnp.asarray(scores), min(FUSED, scores.shape[1])))
    reciprocals = np.zeros(scores.shape, np.float32)
    np.put_along_axis(
        reciprocals, ids, (best > above) / (RRF_K + 1 + np.arange(ids.shape[1], dtype=np.float32)), axis=1
    )
    return reciprocals
