"""Evaluators: rank candidates with a method's parameters, for validation and for a run's report."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from jax.sharding import Mesh

from endx_jax.data.records import Pools, RetrievalSet
from endx_jax.parallel.console import showing_progress
from endx_jax.retrieval.evaluate import Evaluation, EvaluationSettings
from endx_jax.retrieval.results import Results
from endx_jax.retrieval.systems import evaluate_dense


class Evaluator(Protocol):
    """Ranks candidates with a method's parameters."""

    def select(self, records: RetrievalSet) -> RetrievalSet:
        """Returns the set with the questions that are ranked."""

    def evaluate(self, params: dict, pools: Pools) -> Mapping[str, Evaluation]:
        """Ranks each pool, for validation."""

    def report(self, results: Results, trained: dict, untrained: Callable[[], dict] | None) -> np.ndarray | None:
        """Adds the method's systems to the results of a run.

        Args:
          results: the results of the run, which hold the pools to rank.
          trained: the parameters after training.
          untrained: returns the parameters before training; None if the untrained system is not requested.

        Returns:
          Embeddings [N, E] of the first pool's candidates for the index; None if the method has no embeddings.
        """


@dataclasses.dataclass(frozen=True)
class EmbeddingEvaluator:
    """Ranks by inner products of embeddings.

    Attributes:
      encode: function (tower parameters, side, texts, progress=...) -> embeddings [N, E].
      settings: evaluation settings.
    """

    encode: Callable[..., np.ndarray]
    settings: EvaluationSettings

    def select(self, records: RetrievalSet) -> RetrievalSet:
        """Returns the set unchanged."""
        return records

    def evaluate(self, params: dict, pools: Pools) -> Mapping[str, Evaluation]:
        """Ranks each pool, for validation."""
        return evaluate_dense(self._encoder(params, progress=False), pools).evaluations

    def report(self, results: Results, trained: dict, untrained: Callable[[], dict] | None) -> np.ndarray | None:
        """Adds the systems `untrained` and `trained` to the results; returns the candidates' embeddings [N, E]."""
        if untrained:
            self._add("untrained", untrained(), results)
        return self._add("trained", trained, results)

    def _add(self, name: str, params: dict, results: Results) -> np.ndarray:
        encode = self._encoder(params, progress=showing_progress())
        found = evaluate_dense(encode, results.pools, reverse=self.settings.reverse)
        results.add_dense(name, found)
        return found.candidates

    def _encoder(self, params: dict, *, progress: bool) -> Callable[[str, Sequence[str]], np.ndarray]:
        return lambda side, texts: self.encode(params["dual_encoder"], side, texts, progress=progress)


def evaluate_embeddings(
    objective: Any, encode: Callable[..., np.ndarray], mesh: Mesh, settings: EvaluationSettings
) -> EmbeddingEvaluator:
    """Returns the evaluator of methods that embed each text independently."""
    del objective, mesh
    return EmbeddingEvaluator(encode, settings)
