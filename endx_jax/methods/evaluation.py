"""Evaluators: rank candidates with a method's parameters, for validation and for a run's report."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from jax.sharding import Mesh

from endx_jax.data.sets.records import Pools, RetrievalSet
from endx_jax.numerics import unit_rows
from endx_jax.parallel.console import showing_progress
from endx_jax.ranking.evaluate import Evaluation, EvaluationSettings
from endx_jax.ranking.results import Results
from endx_jax.ranking.systems import DenseResult, evaluate_dense


class Evaluator(Protocol):
    """Ranks candidates with a method's parameters."""

    def select(self, records: RetrievalSet) -> RetrievalSet:
        """Returns the set with the questions that are ranked."""

    def evaluate(self, params: dict, pools: Pools) -> Mapping[str, Evaluation]:
        """Ranks each pool, for validation."""

    def report(self, results: Results, trained: dict, untrained: Callable[[], dict] | None) -> DenseResult | None:
        """Adds the method's systems to the results of a run.

        Args:
          results: the results of the run, which hold the pools to rank.
          trained: the parameters after training.
          untrained: returns the parameters before training; None if the untrained system is not requested.

        Returns:
          The result of the trained model, with embeddings for the index; None if the method has none.
        """


@dataclasses.dataclass(frozen=True)
class EmbeddingEvaluator:
    """Ranks by inner products of embeddings.

    Attributes:
      encode: function (tower parameters, side, texts, progress=...) -> embeddings [N, E].
      settings: evaluation settings.
      prefixes: widths of prefixes of the embeddings that the report ranks too.
      normalize: scale prefixes to unit norm.
    """

    encode: Callable[..., np.ndarray]
    settings: EvaluationSettings
    prefixes: tuple[int, ...] = ()
    normalize: bool = False

    def select(self, records: RetrievalSet) -> RetrievalSet:
        """Returns the set unchanged."""
        return records

    def evaluate(self, params: dict, pools: Pools) -> Mapping[str, Evaluation]:
        """Ranks each pool, for validation."""
        return evaluate_dense(self._encoder(params, progress=False), pools).evaluations

    def report(self, results: Results, trained: dict, untrained: Callable[[], dict] | None) -> DenseResult | None:
        """Adds the systems `untrained`, `trained` and `hybrid`; returns the result of `trained`.

        The systems of prefixes are `untrained@WIDTH` and `trained@WIDTH`.
        """
        if untrained:
            self._add("untrained", untrained(), results)
        return self._add("trained", trained, results, fuse=results.fuse if results.hybrid else None)

    def _add(self, name: str, params: dict, results: Results, fuse: Callable | None = None) -> DenseResult:
        encode, known = self._encoder(params, progress=showing_progress()), {}

        def encode_once(side: str, texts: Sequence[str]) -> np.ndarray:
            known[side] = encode(side, texts)
            return known[side]

        def prefix(width: int, side: str, texts: Sequence[str]) -> np.ndarray:
            del texts  # those of `known`
            embeddings = known[side][:, :width]
            return unit_rows(embeddings) if self.normalize else embeddings

        dense = evaluate_dense(encode_once, results.pools, reverse=self.settings.reverse, fuse=fuse)
        results.add_dense(name, dense)
        for width in sorted(self.prefixes, reverse=True):
            if width < dense.candidates.shape[1]:
                cut = evaluate_dense(functools.partial(prefix, width), results.pools)
                results.add(f"{name}@{width}", cut.evaluations)
        return dense

    def _encoder(self, params: dict, *, progress: bool) -> Callable[[str, Sequence[str]], np.ndarray]:
        return lambda side, texts: self.encode(params["dual_encoder"], side, texts, progress=progress)


def evaluate_embeddings(
    objective: Any, encode: Callable[..., np.ndarray], mesh: Mesh, settings: EvaluationSettings
) -> EmbeddingEvaluator:
    """Returns the evaluator of methods that embed each text independently."""
    del mesh
    return EmbeddingEvaluator(encode, settings, objective.settings.matryoshka_dims, objective.model.question.normalize)
