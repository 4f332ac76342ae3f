"""The results that runs left in their workdirs."""

import json
import pathlib

from endx_jax.analysis.study import Source
from endx_jax.errors import EndxError, nearest
from endx_jax.experiment import workdir as workdirs

# What tells one evaluation of a system from another.
PARTS = ("dataset", "split", "pool", "direction")


def read_evaluations(source: Source) -> list[dict]:
    """Every evaluation in a run's own results, and then in those that `endx evaluate` left in its workdir.

    Raises:
      EndxError: there are none, or a file of them is damaged.
    """
    workdir = source.workdir
    own = workdir / workdirs.RESULTS
    files = [own] if own.is_file() else []
    found = [
        entry
        for file in files + sorted((workdir / workdirs.EVALUATION).glob("*/results.json"))
        for entry in _read(file)
    ]
    if not found:
        raise EndxError(f"{source.name}: {workdir} has no results yet; endx evaluate --workdir={workdir} makes them")
    return found


def _read(file: pathlib.Path) -> list[dict]:
    try:
        return json.loads(file.read_text(encoding="utf-8"))["evaluations"]
    except (ValueError, KeyError) as failure:
        raise EndxError(f"{file} is damaged ({failure}): evaluate the run again") from None


def metric_of(entry: dict, metric: str) -> float:
    """One metric of an evaluation, a fraction.

    Raises:
      EndxError: it was not measured.
    """
    if metric not in entry["metrics"]:
        known = entry["metrics"]
        raise EndxError(f"{metric!r} is none of the metrics {', '.join(known)}{nearest(metric, known)}")
    return entry["metrics"][metric]
