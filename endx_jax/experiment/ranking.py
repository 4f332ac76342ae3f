"""How a run that ranks by embeddings is judged: its validations, and its report."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from endx_jax.data.batches import Pairs
from endx_jax.data.records import RetrievalSet
from endx_jax.experiment import workdir as workdirs
from endx_jax.experiment.console import showing_progress
from endx_jax.experiment.data import pools
from endx_jax.experiment.decoding import check_decoders
from endx_jax.experiment.model import best_params
from endx_jax.experiment.prepare import Run
from endx_jax.experiment.results import Results
from endx_jax.experiment.teacher import compare_teacher
from endx_jax.objectives import EndxObjective, VaeObjective
from endx_jax.parallel.distributed import on_primary
from endx_jax.parallel.sharding import place, state_shardings
from endx_jax.retrieval.index import write_index
from endx_jax.retrieval.shards import metric_of
from endx_jax.retrieval.systems import DenseResult, evaluate_dense


@dataclasses.dataclass(frozen=True)
class EmbeddingJudge:
    """Ranks by inner products of embeddings.

    Attributes:
      run: that is judged.
    """

    run: Run

    def asked(self, records: RetrievalSet) -> RetrievalSet:
        """The set as it is."""
        return records

    def validate(self, params: dict) -> dict[str, float]:
        """The measures of parameters on the validation split."""
        validation = next(iter(pools(self.run.data.validation, self.run.model.settings.data).values()))
        return self._evaluate(params, {"validation": validation}).evaluations["validation"].metrics

    def report(self, results: Results) -> int:
        """Adds BM25 and the towers before and after training to the results, and keeps the encoded pool.

        Returns:
          The step of the checkpoint that was taken.
        """
        run, test, depth = self.run, results.pools, self.run.model.settings.evaluation.depth
        reverse = run.model.settings.evaluation.reverse
        if reverse:
            results.rank_both_ways()
        results.add_bm25(depth=depth)
        options: dict[str, Any] = {"depth": depth, "progress": showing_progress(), "reverse": reverse}
        if run.model.settings.evaluation.untrained:
            shardings = state_shardings(run.model.abstract_params(), run.mesh)
            untrained = place(run.model.initial_params(run.mesh), shardings)
            results.add_dense("untrained", self._evaluate(untrained, test, **options))
        params, step = best_params(run.workdir, run.model, run.mesh)
        trained = self._evaluate(params, test, **options)
        results.add_dense("trained", trained)
        results.held_out_pairs, results.decoders = self._compare_teacher(params), self._check_decoders(params)
        identity = run.encoder.identity(params["dual_encoder"])

        def write() -> None:
            write_index(
                run.workdir / workdirs.INDEX,
                trained.candidates,
                next(iter(test.values())).documents,
                metric=metric_of(cosine=run.model.settings.model.normalize),
                model={"name": str(run.workdir), "identity": identity, "step": step},
            )

        on_primary(write, "index-written")
        return step

    def _evaluate(
        self,
        params: dict,
        sets: Mapping[str, RetrievalSet],
        *,
        depth: int = 100,
        progress: bool = False,
        reverse: bool = False,
    ) -> DenseResult:
        def encode(side, texts):
            return self.run.encoder(params["dual_encoder"], side, texts, progress=progress)

        return evaluate_dense(encode, sets, depth=depth, reverse=reverse)

    def _compare_teacher(self, params: dict) -> dict[str, dict[str, float]]:
        """How well teacher and student find held-out pairs; empty for methods without a teacher."""
        run = self.run
        if not isinstance(run.objective, EndxObjective):
            return {}
        return compare_teacher(run.objective, params, self._held_out(), run.mesh, batch_size=self._batch_size)

    def _check_decoders(self, params: dict) -> dict[str, dict[str, float]]:
        """Whether decoders listen to latent vectors, of held-out pairs; empty for methods without decoders."""
        run = self.run
        if not isinstance(run.objective, VaeObjective):
            return {}
        return check_decoders(run.objective, params, self._held_out(), run.mesh, batch_size=self._batch_size)

    def _held_out(self) -> Pairs:
        held_out = self.run.data.validation if self.run.data.validation.questions else self.run.data.test
        return Pairs.tokenize(held_out, self.run.model.preparations)

    @property
    def _batch_size(self) -> int:
        return self.run.model.settings.evaluation.batch_size
