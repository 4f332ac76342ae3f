"""Rows of trained systems: their runs, made or found, and what their results say."""

import gc
import json
import pathlib
from collections.abc import Callable

import jax

from endx_jax.errors import EndxError
from endx_jax.experiment import workdir as workdirs
from endx_jax.experiment.config import differences, resolve
from endx_jax.experiment.console import say
from endx_jax.experiment.model import build_model
from endx_jax.experiment.run import run
from endx_jax.reproduction.outcome import Outcome
from endx_jax.reproduction.plan import Options, Plan, plan_of
from endx_jax.reproduction.table import Row
from endx_jax.training import metric_log

# Takes a finished run's workdir and the row, and gives the row's measures.
Read = Callable[[pathlib.Path, Row], tuple[float, ...]]


class Budget:
    """Says whether another run may begin."""

    def __init__(self, seconds_left: Callable[[], float] = lambda: float("inf")):
        """Knows how much time there is."""
        self._seconds_left = seconds_left

    def check(self) -> None:
        """Raises EndxError when the time is over."""
        if self._seconds_left() <= 0:
            raise EndxError("the budget is used up; the same command goes on")


def measures_of_results(workdir: pathlib.Path, row: Row) -> tuple[float, ...]:
    """The row's measures of its system, pool and direction in `results.json`, in per cent.

    Raises:
      EndxError: they are not in the results.
    """
    file = workdir / workdirs.RESULTS
    evaluations = json.loads(file.read_text(encoding="utf-8"))["evaluations"]
    for found in evaluations:
        same_pool = found["pool"] == row.pool or not row.pool
        if same_pool and found["system"] == row.system and found["direction"] == row.direction:
            return tuple(100 * found["metrics"][name] for name in row.measures)
    raise EndxError(f"{file} has no {row.system} in the pool {row.pool!r}, {row.direction}")


def trained(row: Row, options: Options, budget: Budget, read: Read = measures_of_results) -> Outcome:
    """Makes the runs of a row that are not there yet, in order, and reads all.

    What can't be made is the outcome's reason: data or weights that are not at hand, no shortened form, no time left.

    Args:
      row: of a table.
      options: what is at hand.
      budget: how much time there is.
      read: takes a row's measures from a workdir; by default from its results.
    """
    values, runs, why, plan = [], [], "", None
    try:
        plan = plan_of(row, options)
        for seed in range(plan.seeds):
            workdir = make(plan, seed, options, budget)
            values.append(read(workdir, row))
            runs.append(workdir)
    except EndxError as reason:
        why = str(reason)
    differs = plan.differs if plan else ""
    return Outcome(row, tuple(values), why, differs, tuple(map(str, runs)), facts_of(runs))


def make(plan: Plan, seed: int, options: Options, budget: Budget) -> pathlib.Path:
    """The workdir of a finished run, made now or found.

    Raises:
      EndxError: it can't be made; or the folder holds another run.
    """
    workdir = plan.workdir(seed)
    config = plan.config(seed, options)
    if (workdir / workdirs.RESULTS).exists():
        found = differences(workdirs.read_config(workdir), build_model(resolve(config)).settings)
        if found:
            raise EndxError(f"{workdir} holds a run with other settings ({'; '.join(found)}); give another --output")
        return workdir
    budget.check()
    say(f"\n== {plan.row.name}, seed {seed}: {workdir}")
    run(config, workdir)
    jax.clear_caches()  # each row has programs of its own, and they would all stay in memory
    gc.collect()
    return workdir


def facts_of(runs: list[pathlib.Path]) -> dict:
    """What the runs were made with: seeds, steps, pairs a step, and their manifests."""
    facts = []
    for workdir in runs:
        settings = workdirs.read_config(workdir)
        facts.append(
            {
                "workdir": str(workdir),
                "seed": settings.seed,
                "steps": _last_step(workdir),
                "batch": settings.train.global_batch_size,
                "manifest": json.loads((workdir / workdirs.MANIFEST).read_text(encoding="utf-8")),
            }
        )
    return {"runs": facts} if facts else {}


def _last_step(workdir: pathlib.Path) -> int:
    lines = (workdir / metric_log.FILE).read_text(encoding="utf-8").splitlines()
    return max(json.loads(line)["step"] for line in lines)
