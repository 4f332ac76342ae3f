"""Evaluator of the pair classifier, which re-ranks the best answers of BM25."""

import dataclasses
from collections.abc import Callable, Mapping

from jax.sharding import Mesh

from endx_jax.data.records import RetrievalSet
from endx_jax.data.splits import limit_questions
from endx_jax.data.tokenization import TextProcessor
from endx_jax.errors import EndxError
from endx_jax.inference.encode import TextEncoder
from endx_jax.methods.pair.objective import PairObjective, PairSettings
from endx_jax.methods.pair.scorer import PairScorer
from endx_jax.parallel.console import showing_progress
from endx_jax.retrieval.bm25 import BM25
from endx_jax.retrieval.evaluate import Evaluation, EvaluationSettings
from endx_jax.retrieval.rerank import evaluate_pairs
from endx_jax.retrieval.results import Results


@dataclasses.dataclass(frozen=True)
class PairEvaluator:
    """Evaluator that re-ranks the best answers of BM25 for some questions, since scoring all pairs takes too long.

    Attributes:
      scorer: of pairs.
      settings: of the method, with the numbers of questions and of answers per question.
      depth: answers kept per question.
    """

    scorer: PairScorer
    settings: PairSettings
    depth: int

    def select(self, records: RetrievalSet) -> RetrievalSet:
        """Returns the set with `objective.questions` of its questions and the whole pool."""
        return limit_questions(records, self.settings.questions)

    def evaluate(self, params: dict, pools: Mapping[str, RetrievalSet]) -> Mapping[str, Evaluation]:
        """Re-ranks BM25's best answers of each pool."""
        return {name: self._rank(params, records) for name, records in pools.items()}

    def report(self, results: Results, trained: dict, untrained: Callable[[], dict] | None) -> None:
        """Adds BM25's best answers in the classifier's order to the results."""
        del untrained  # a new head scores at random
        results.add("trained", self.evaluate(trained, results.pools))
        top = self.settings.top
        results.notes.append(
            f"trained: the pair classifier's order of {f'the best {top} of bm25' if top else 'all candidates'}, of "
            f"{len(next(iter(results.pools.values())).questions):,} questions (objective.top, objective.questions)"
        )

    def _rank(self, params: dict, records: RetrievalSet) -> Evaluation:
        score = self.scorer(params, records.questions, records.candidates, progress=showing_progress())
        first = BM25.of_texts(records.candidates).score_block(records.questions)
        return evaluate_pairs(score, first, records, top=self.settings.top, depth=self.depth)


def evaluate_by_pairs(
    objective: PairObjective, encoder: TextEncoder, mesh: Mesh, settings: EvaluationSettings
) -> PairEvaluator:
    """Returns the evaluator of a run.

    Raises:
      EndxError: pairs could be too long for the encoder, or `evaluation.reverse` is set.
    """
    if settings.reverse:
        raise EndxError("evaluation.reverse is for methods that rank by embeddings; objective.name=pair has none")
    scorer = pair_scorer(objective, encoder.processors, mesh, settings.batch_size)
    return PairEvaluator(scorer, objective.settings, settings.depth)


def pair_scorer(
    objective: PairObjective, processors: Mapping[str, TextProcessor], mesh: Mesh, batch_size: int
) -> PairScorer:
    """Returns the scorer of question-answer pairs: see `PairScorer`."""
    return PairScorer(objective.classifier, processors, mesh, batch_size)
