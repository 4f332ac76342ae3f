"""How a run of a pair classifier is judged: by re-ranking the best answers of BM25."""

import dataclasses

from jax.sharding import Mesh

from endx_jax.data.records import RetrievalSet
from endx_jax.data.splits import ask_fewer
from endx_jax.errors import EndxError
from endx_jax.experiment.console import showing_progress
from endx_jax.experiment.data import pools
from endx_jax.experiment.model import Model, best_params
from endx_jax.experiment.prepare import Run
from endx_jax.experiment.results import Results
from endx_jax.retrieval.bm25 import BM25
from endx_jax.retrieval.evaluate import Evaluation
from endx_jax.retrieval.pair_scores import PairScorer
from endx_jax.retrieval.rerank import evaluate_pairs


@dataclasses.dataclass(frozen=True)
class PairJudge:
    """Ranks the best answers of BM25, for some questions: nobody could wait for the scores of all pairs of a pool.

    Attributes:
      run: that is judged.
      scorer: of pairs.
    """

    run: Run
    scorer: PairScorer

    def asked(self, records: RetrievalSet) -> RetrievalSet:
        """The set with as many questions as `objective.questions` says, and the whole pool."""
        return ask_fewer(records, self.run.model.settings.objective.questions)

    def validate(self, params: dict) -> dict[str, float]:
        """The measures of parameters on the validation split."""
        validation = next(iter(pools(self.run.data.validation, self.run.model.settings.data).values()))
        return self._evaluate(params, self.asked(validation)).metrics

    def report(self, results: Results) -> int:
        """Adds BM25, and what the classifier makes of its best answers, to the results.

        Returns:
          The step of the checkpoint that was taken.
        """
        results.add_bm25(depth=self._depth)
        params, step = best_params(self.run.workdir, self.run.model, self.run.mesh)
        trained = {name: self._evaluate(params, records) for name, records in results.pools.items()}
        results.add("trained", trained)
        top = self.run.model.settings.objective.top
        results.notes.append(
            f"trained: the pair classifier's order of {f'the best {top} of bm25' if top else 'all candidates'}, of "
            f"{len(next(iter(results.pools.values())).questions):,} questions (objective.top, objective.questions)"
        )
        return step

    @property
    def _depth(self) -> int:
        return self.run.model.settings.evaluation.depth

    def _evaluate(self, params: dict, records: RetrievalSet) -> Evaluation:
        score = self.scorer(params, records.questions, records.candidates, progress=showing_progress())
        first = BM25.of_texts(records.candidates).score_block(records.questions)
        return evaluate_pairs(score, first, records, top=self.run.model.settings.objective.top, depth=self._depth)


def judge_pairs(run: Run) -> PairJudge:
    """The judge of a run whose objective is `pair`.

    Raises:
      EndxError: pairs could be too long for the encoder; or the other direction is asked for too.
    """
    if run.model.settings.evaluation.reverse:
        raise EndxError("evaluation.reverse is for methods that rank by embeddings; objective.name=pair has none")
    return PairJudge(run, pair_scorer(run.model, run.mesh))


def pair_scorer(model: Model, mesh: Mesh) -> PairScorer:
    """What scores pairs with a model whose objective is `pair`."""
    return PairScorer(model.objective.classifier, model.preparations, mesh, model.settings.evaluation.batch_size)
