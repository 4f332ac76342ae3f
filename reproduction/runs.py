"""Runs of a row: their configs, workdirs and measures."""

import dataclasses
import gc
import math
import os
import pathlib
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax

import reproduction.shuffled  # noqa: F401 (registers its method)
from endx_jax import json_files
from endx_jax.buckets import url_of
from endx_jax.data.formats import open_data
from endx_jax.data.formats.origins import ORIGINS
from endx_jax.errors import EndxError
from endx_jax.experiment import workdir as workdirs
from endx_jax.experiment.config import config_changes, resolve
from endx_jax.experiment.model import build_model
from endx_jax.experiment.run import run
from endx_jax.methods.config import load_config
from endx_jax.parallel.console import say
from endx_jax.ranking.results import read_results
from endx_jax.training import metric_log
from reproduction.outcome import Outcome
from reproduction.tables import Row, papers


@dataclasses.dataclass(frozen=True)
class Options:
    """Data and weights at hand, seeds, and the time budget.

    Attributes:
      output: the folder of all runs.
      data: places of data, by name.
      weights: places of pretrained models, by their names in recipes.
      seeds: runs of each row; 0: the paper's number, or one for a shortened row.
      budget: minutes for a whole table; 0: every row as in the paper.
      deadline: `time.monotonic()` after which no run starts.
    """

    output: pathlib.Path
    data: Mapping[str, str] = dataclasses.field(default_factory=dict)
    weights: Mapping[str, str] = dataclasses.field(default_factory=dict)
    seeds: int = 0
    budget: float = 0.0
    deadline: float = math.inf

    @property
    def length(self) -> str:
        """Name of the folders that hold runs of this length."""
        return f"{self.budget:g}-minutes" if self.budget else "full"

    def place_of(self, name: str) -> str:
        """Returns the place of a named data set.

        Raises:
          EndxError: the data set has no default place, and none was given.
        """
        about = papers().data[name]
        given = about.get("given", name)
        place = self.data.get(given, about.get("path", ""))
        if not place:
            raise EndxError(f"needs --data {given}=PATH")
        if about.get("part") == "train":
            parts = open_data(place).parts if place in ORIGINS or url_of(place) or os.path.exists(place) else None
            return parts[0] if parts else place
        return place


@dataclasses.dataclass(frozen=True)
class RowPlan:
    """Recipe, settings and folder of a row's runs.

    Attributes:
      row: the row of these runs, possibly another one whose runs are reused.
      recipe: recipe of the package with its arguments, or config file.
      data: name of the data.
      set: changed settings of the recipe, by dotted name.
      differs: description of the differences from the paper's row; may be empty.
      folder: folder of the row's runs.
      seeds: number of runs.
    """

    row: Row
    recipe: str
    data: str
    set: Mapping[str, Any]
    differs: str
    folder: pathlib.Path
    seeds: int

    def workdir(self, seed: int) -> pathlib.Path:
        """Returns the workdir of one run."""
        return self.folder / f"seed{seed}"

    def config(self, seed: int, options: Options) -> Any:
        """Returns the config of one run.

        Raises:
          EndxError: the place of the data is not given.
        """
        config = load_config(self.recipe)
        config.update_from_flattened_dict({key: _tuples(value) for key, value in self.set.items()})
        config.seed = seed
        config.data.path = options.place_of(self.data)
        if test := papers().data[self.data].get("test"):
            config.data.test_path = options.place_of(test)
        for key, row in self.row.after.items():
            other = plan_of(papers().row(row), options).workdir(seed)
            config.update_from_flattened_dict({key: str(other.absolute())})
        config.model.pretrained = options.weights.get(config.model.pretrained, config.model.pretrained)
        config.evaluation.untrained = self.row.system == "untrained"
        return config


def plan_of(row: Row, options: Options) -> RowPlan:
    """Returns the plan of a trained row, in full or shortened.

    Raises:
      EndxError: a budget is given and the row has no shortened form.
    """
    if row.of:
        return plan_of(papers().row(row.of), options)
    folder = options.output / row.table / slug(row.row) / options.length
    if not options.budget:
        return RowPlan(row, row.recipe, row.data, row.set, "", folder, options.seeds or row.seeds)
    if "void" in row.short:
        raise EndxError(f"void when shortened: {row.short['void']}")
    if "of" in row.short:
        return plan_of(papers().row(row.short["of"]), options)
    if "form" not in row.short:
        raise EndxError("has no shortened form; run it without --budget")
    form = papers().forms[row.short["form"]]
    steps = max(1, round(form["steps"] * options.budget / papers().tables[row.table].minutes))
    changed = {**papers().shorter, **form["set"], **row.short.get("set", {}), "train.steps": steps}
    recipe = row.short.get("recipe", form["recipe"])
    return RowPlan(row, recipe, form["data"], changed, form["differs"], folder, options.seeds or 1)


def slug(name: str) -> str:
    """Returns a name as used for folders."""
    return re.sub(r"[^\w.-]+", "-", name).strip("-")


def _tuples(value: Any) -> Any:
    """Converts lists to tuples at every depth, as settings hold them."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def measures_of_results(workdir: pathlib.Path, row: Row) -> tuple[float, ...]:
    """Returns the row's measures of its system, pool and direction from `results.json`, in per cent.

    Raises:
      EndxError: they are not in the results.
    """
    file = workdir / workdirs.RESULTS
    for found in read_results(file):
        same_pool = found["pool"] == row.pool or not row.pool
        if same_pool and found["system"] == row.system and found["direction"] == row.direction:
            return tuple(100 * found["metrics"][name] for name in row.measures)
    raise EndxError(f"{file} has no {row.system} in the pool {row.pool!r}, {row.direction}")


def trained(
    row: Row, options: Options, read: Callable[[pathlib.Path, Row], tuple[float, ...]] = measures_of_results
) -> Outcome:
    """Trains the missing runs of a row, in order, and reads the measures of all.

    If a run is not possible, the outcome has the reason: missing data or weights, no time left.

    Args:
      row: row of a table.
      options: data, weights and lengths.
      read: reads a row's measures from a workdir; by default from its results.
    """
    plan = plan_of(row, options)
    values, runs, facts, why = [], [], [], ""
    try:
        for seed in range(plan.seeds):
            workdir = make(plan, seed, options)
            values.append(read(workdir, row))
            runs.append(str(workdir))
            facts.append(_facts(workdir))
    except EndxError as reason:
        why = str(reason)
    return Outcome(row, tuple(values), why, plan.differs, tuple(runs), {"runs": facts} if facts else {})


def make(plan: RowPlan, seed: int, options: Options) -> pathlib.Path:
    """Returns the workdir of a finished run, after training it if it is missing.

    Raises:
      EndxError: training is not possible, the time is used up, or the folder holds another run.
    """
    workdir = plan.workdir(seed)
    config = plan.config(seed, options)
    if (workdir / workdirs.RESULTS).exists():
        found = config_changes(workdirs.read_config(workdir), build_model(resolve(config)).settings)
        if found:
            raise EndxError(f"{workdir} holds a run with other settings ({'; '.join(found)}); give another --output")
        return workdir
    for name in plan.row.after.values():
        make(plan_of(papers().row(name), options), seed, options)
    if time.monotonic() >= options.deadline:
        raise EndxError("the budget is used up; the same command resumes")
    say(f"\n== {plan.row.name}, seed {seed}: {workdir}")
    run(config, workdir)
    jax.clear_caches()  # each row has programs of its own, and they would all stay in memory
    gc.collect()
    return workdir


def _facts(workdir: pathlib.Path) -> dict:
    """Returns seed, steps, pairs a step and manifest of a run."""
    settings, metrics = workdirs.read_config(workdir), metric_log.read_metrics(workdir / metric_log.FILE)
    return {
        "workdir": str(workdir),
        "seed": settings.seed,
        "steps": max((line["step"] for line in metrics), default=0),
        "batch": settings.train.global_batch_size,
        "manifest": json_files.read_json_file(workdir / workdirs.MANIFEST),
    }
