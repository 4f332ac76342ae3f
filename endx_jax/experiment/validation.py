"""Validation during training: the held-out questions of the run's data and the sets of `evaluation.sets`."""

import os
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from endx_jax import hub
from endx_jax.data.readers import beir
from endx_jax.data.sets.records import Pools, RetrievalSet
from endx_jax.data.settings import DataSettings
from endx_jax.errors import located, naming
from endx_jax.experiment.data import find_source, pools
from endx_jax.methods.evaluation import Evaluator
from endx_jax.metrics.significance import FEWEST, paired_difference
from endx_jax.ranking.evaluate import MEAN, MEASURES, EvaluationSettings
from endx_jax.ranking.results import COLUMNS, Results
from endx_jax.ranking.tables import aligned
from endx_jax.settings import require

VALIDATION = "validation"
UNTRAINED = "untrained"  # name of the system before training
SMALLEST_LOSS = 0.005  # smallest decrease of a mean over questions that is reported


def read_sets(evaluation: EvaluationSettings, data: DataSettings) -> dict[str, RetrievalSet]:
    """Reads the sets of `evaluation.sets`; returns them by name. Those of a suite are named SUITE/SET.

    Raises:
      EndxError: a set can't be read.
    """
    sets = {}
    for name, path in zip(evaluation.names_of_sets, evaluation.sets, strict=True):
        whole, _, split = path.rpartition(":")
        # The splits of prepared sets are part of their names.
        if os.path.exists(path) or not (os.path.exists(whole) or whole.startswith(hub.DATA)):
            whole, split = path, ""
        with located("evaluation.sets"), naming({"data.split": "PATH:SPLIT"}):
            suite = beir.suite_of(hub.local_path(whole), split or None) or {"": (whole, split)}
            for part, (folder, judged) in suite.items():
                source = find_source(folder, data, judged or None)
                sets[f"{name}/{part}" if part else name] = pools(source.read(data), data, source.pool).primary
    return sets


def validation(
    evaluator: Evaluator, settings: EvaluationSettings, held_out: RetrievalSet | None, sets: Mapping[str, RetrievalSet]
) -> Callable[[dict], dict[str, float]] | None:
    """Returns a function from parameters to their metrics; None if there is nothing to rank.

    Metrics of the validation split have the names of `MEASURES`, those of a set are `SET/MEASURE`, those of a suite are
    the means over its sets, and with several sets and suites `mean/MEASURE` is the mean over them. Every process must
    call the function.

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
        if len(whole) > 1:
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


def warn_of_losses(results: Results, measure: str) -> None:
    """Adds a line to the results for each set on which the trained system ranks below the untrained one.

    The sets are the test set in its primary pool, where the interval of the difference must be below 0, and those of
    `add_validation`, of which only means are known: there it must be at least `SMALLEST_LOSS`.
    """
    pool, losses = results.pools.primary_name, {}
    primary, section = results.evaluations.get(pool, {}), results.sections.get(VALIDATION, {})
    if UNTRAINED in primary and "trained" in primary:
        values = [primary[system].values[measure][:, None] for system in (UNTRAINED, "trained")]
        groups = results.pools.primary.groups or ()
        (difference,) = paired_difference(*values, clusters=groups if len(set(groups)) >= FEWEST else ())
        if difference.high < 0:
            where = "the test set" + f" (pool {pool})" * (len(results.evaluations) > 1)
            losses[where] = [primary[system].metrics[measure] for system in (UNTRAINED, "trained")]
    for name, before in section.get(UNTRAINED, {}).items():
        if before[measure] - section["metrics"][name][measure] >= SMALLEST_LOSS:
            losses[name] = [before[measure], section["metrics"][name][measure]]
    results.notes += [
        f"warning: on {name} `trained` ranks below `untrained`, {measure} {after:.3f} instead of {before:.3f}: for "
        "such data use the model before training, a lower learning rate, or `endx merge` with it"
        for name, (before, after) in losses.items()
    ]


def _by_set(metrics: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Returns metrics by set and measure."""
    measured: dict[str, dict[str, float]] = {}
    for key, value in metrics.items():
        name, _, measure = key.rpartition("/")
        measured.setdefault(name or VALIDATION, {})[measure] = value
    return measured
