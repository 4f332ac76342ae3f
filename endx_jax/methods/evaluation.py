"""Evaluators, which rank candidates with a method's parameters, and their use in validation and in a run's report."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from jax.sharding import Mesh

from endx_jax.data.sets.records import Pools, RetrievalSet
from endx_jax.metrics.significance import FEWEST, Difference, paired_difference
from endx_jax.numerics import unit_rows
from endx_jax.parallel.console import say, showing_progress
from endx_jax.ranking.evaluate import MEAN, MEASURES, VALIDATION, Evaluation, EvaluationSettings
from endx_jax.ranking.hybrid import WEIGHT, Hybrid, default_hybrid
from endx_jax.ranking.results import COLUMNS, Results, aligned
from endx_jax.ranking.systems import DenseResult, evaluate_dense
from endx_jax.settings import require

# Names of the systems before training: the model alone, and fused with BM25, as it would be served.
UNTRAINED, UNTRAINED_HYBRID = "untrained", "untrained hybrid"
SMALLEST_LOSS = 0.005  # smallest decrease of a mean over questions that is reported


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
        """Adds the systems before and after training, alone and fused with BM25; returns the result of `trained`.

        Before training the fusion is the default. The systems of prefixes are `untrained@WIDTH` and `trained@WIDTH`.
        """
        if untrained:
            default = default_hybrid(cosine=self.normalize) if results.hybrid else None
            self._add(UNTRAINED, untrained(), results, UNTRAINED_HYBRID, default)
        return self._add("trained", trained, results, "hybrid", results.hybrid)

    def _add(self, name: str, params: dict, results: Results, fused: str, hybrid: Hybrid | None) -> DenseResult:
        say(f"ranking by `{name}`")
        encode, encoded = self._encoder(params, progress=showing_progress()), {}

        def encode_once(side: str, texts: Sequence[str]) -> np.ndarray:
            encoded[side] = encode(side, texts)
            return encoded[side]

        def prefix(width: int, side: str, texts: Sequence[str]) -> np.ndarray:
            del texts  # those of `encoded`
            embeddings = encoded[side][:, :width]
            return unit_rows(embeddings) if self.normalize else embeddings

        fuse = functools.partial(results.fuse, hybrid=hybrid) if hybrid else None
        dense = evaluate_dense(encode_once, results.pools, reverse=self.settings.reverse, fuse=fuse)
        results.add_dense(name, dense, fused, hybrid)
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


def validation(
    evaluator: Evaluator, settings: EvaluationSettings, held_out: RetrievalSet | None, sets: Mapping[str, RetrievalSet]
) -> Callable[[dict], dict[str, float]] | None:
    """Returns a function from parameters to their metrics; None if there is nothing to rank.

    Metrics of the validation split have the names of `MEASURES`, those of a set are `SET/MEASURE`, those of a suite are
    the means over its sets, and `mean/MEASURE` is the mean over sets and suites if there are several, or the settings
    name it. Every process must call the function.

    Args:
      evaluator: the method's evaluator.
      settings: evaluation settings.
      held_out: validation split with its pool; None if it is empty.
      sets: further sets by name.

    Raises:
      EndxError: `evaluation.metric` is a measure of the validation split, which is empty, and there are other sets.
    """
    ranked = {VALIDATION: held_out} if held_out is not None else {}
    require(
        bool(ranked) or not sets or "/" in settings.metric,
        f"evaluation.metric={settings.metric} is a measure of the validation split, which is empty: set it to "
        f"{next(iter(sets), 'SET').partition('/')[0]}/{settings.metric}, or data.validation_fraction above 0",
    )
    selected = {name: evaluator.select(records) for name, records in (ranked | dict(sets)).items()}

    def validate(params: dict) -> dict[str, float]:
        measured = {
            name: evaluator.evaluate(params, Pools({name: part}))[name].metrics for name, part in selected.items()
        }
        metrics = measured.pop(VALIDATION, {})
        for suite in dict.fromkeys(name.rpartition("/")[0] for name in selected if "/" in name):
            measured[suite] = _mean([values for name, values in measured.items() if name.startswith(f"{suite}/")])
        whole = [values for name, values in measured.items() if "/" not in name]
        if len(whole) > 1 or settings.metric.startswith(f"{MEAN}/"):
            measured[MEAN] = _mean(whole)
        return metrics | {
            f"{name}/{measure}": value for name, values in measured.items() for measure, value in values.items()
        }

    return validate if selected else None


def _mean(measured: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {measure: float(np.mean([values[measure] for values in measured])) for measure in MEASURES}


def add_validation(
    results: Results, step: int, metrics: Mapping[str, float], untrained: Mapping[str, float] | None = None
) -> None:
    """Adds the metrics of the best checkpoint on further sets to the results, if there are such sets.

    Args:
      results: the results of the run.
      step: step of the checkpoint.
      metrics: its metrics, as `validation` names them.
      untrained: metrics of the parameters before training; None if unknown.
    """
    measured, before = _by_set(metrics), _by_set(untrained or {})
    if not measured.keys() - {VALIDATION}:
        return
    rows = []
    for name, values in measured.items():
        for label, row in ((name, values), (f"{name}, untrained", before.get(name))):
            rows += [[label, *(f"{row[measure]:.3f}" for measure in COLUMNS)]] if row else []
    results.sections[VALIDATION] = {"step": step, "metrics": measured} | ({UNTRAINED: before} if before else {})
    results.notes += ["", f"validation at step {step}:", *aligned([["set", *COLUMNS], *rows])]


def compare_with_untrained(results: Results, measure: str, *, merge: bool = True) -> None:
    """Adds what training changed: for search, which fuses with BM25, and a line for each set on which it lost.

    If BM25's weight was fitted after training, and is not the default that the untrained model has, the line says so.

    The sets are the test set in its primary pool, where the interval of the difference must be below 0, and those of
    `add_validation`, of which only means are known: there it must be at least `SMALLEST_LOSS`. Fewer than `FEWEST` test
    questions are not compared. With `merge` the line names `endx merge`, which needs the trained model.
    """
    pool, losses = results.pools.primary_name, {}
    section = results.sections.get(VALIDATION, {})
    if compared := _difference(results, UNTRAINED_HYBRID, "hybrid", measure):
        before, after, difference = compared
        shown = "" if difference.low > 0 or difference.high < 0 else ": it does not show that training changed search"
        weight = results.hybrid.weight if results.hybrid else None
        if weight not in (WEIGHT, None):
            shown += (
                f"; a part of it may come from BM25's weight, the default before and {weight:.2f} after: the last line "
                "compares search with fitted weights"
            )
        results.notes.append(
            f"search before and after training (`{UNTRAINED_HYBRID}`, `hybrid`): {measure} {before:.3f} and "
            f"{after:.3f}, a difference of {difference.mean:+.3f}, 95 % interval {difference.low:+.3f} to "
            f"{difference.high:+.3f}{shown}"
        )
    if compared := _difference(results, UNTRAINED, "trained", measure):
        before, after, difference = compared
        if difference.high < 0:
            losses["the test set" + f" (pool {pool})" * (len(results.evaluations) > 1)] = [before, after]
    for name, means in section.get(UNTRAINED, {}).items():
        if means[measure] - section["metrics"][name][measure] >= SMALLEST_LOSS:
            losses[name] = [means[measure], section["metrics"][name][measure]]
    results.notes += [
        f"warning: on {name} `trained` ranks below `untrained`, {measure} {after:.3f} instead of {before:.3f}: for "
        f"such data use {'`endx merge` with the model before training, that model' if merge else 'that model'}, or a "
        "lower learning rate"
        for name, (before, after) in losses.items()
    ]


def _difference(results: Results, first: str, second: str, measure: str) -> tuple[float, float, Difference] | None:
    """Returns the means of two systems and their difference; None without one, or below `FEWEST` questions."""
    systems, groups = results.evaluations.get(results.pools.primary_name, {}), results.pools.primary.groups or ()
    if first not in systems or second not in systems or systems[first].questions < FEWEST:
        return None
    values = [systems[system].values[measure][:, None] for system in (first, second)]
    (difference,) = paired_difference(*values, clusters=groups if len(set(groups)) >= FEWEST else ())
    before, after = (systems[system].metrics[measure] for system in (first, second))
    return before, after, difference


def _by_set(metrics: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Returns metrics by set and measure."""
    measured: dict[str, dict[str, float]] = {}
    for key, value in metrics.items():
        name, _, measure = key.rpartition("/")
        measured.setdefault(name or VALIDATION, {})[measure] = value
    return measured
