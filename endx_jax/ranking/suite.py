"""Results over the data sets of a suite, such as NanoBEIR: those of each set, and their mean."""

import dataclasses
import functools
import pathlib

import numpy as np

from endx_jax.metrics.significance import CONFIDENCE, DRAWS, FEWEST, bootstrap_interval, mean_over_sets
from endx_jax.ranking.bm25 import BM25
from endx_jax.ranking.evaluate import MEAN, NDCG, Evaluation
from endx_jax.ranking.results import COLUMNS, SETS, Results, aligned, entry_of, format_table, write_results

# Lower and upper end by metric.
Intervals = dict[str, tuple[float, float]]


@dataclasses.dataclass(repr=False)
class SuiteResults:
    """Evaluations of the same systems on several data sets.

    Attributes:
      dataset: name of the suite, of which those of the sets are folders.
      split: split of every set.
      evaluations: evaluations of the primary pool by set and system.
      notes: lines below the tables that explain them.
      bm25: lines on the settings of BM25, as keys.
    """

    dataset: str
    split: str
    evaluations: dict[str, dict[str, Evaluation]] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)
    bm25: dict[str, None] = dataclasses.field(default_factory=dict)

    def add(self, name: str, results: Results) -> None:
        """Adds a set with the results in its primary pool."""
        self.evaluations[name] = results.evaluations[results.pools.primary_name]
        self.notes = list(dict.fromkeys([*self.notes, *results.notes]))
        self.bm25[f"bm25: {BM25.description(results.pools.primary.text_language)}"] = None

    @functools.cached_property
    def systems(self) -> dict[str, dict[str, float]]:
        """Metrics of each system: means over sets, each of which counts once."""
        return {
            system: dict(zip(names, mean_over_sets(values, sizes).tolist(), strict=True))
            for system, (names, values, sizes) in self._values().items()
        }

    @functools.cached_property
    def intervals(self) -> dict[str, dict[str, Intervals]]:
        """Bootstrap intervals by set, `mean` included, and system; empty with fewer than `FEWEST` questions."""
        intervals: dict[str, dict[str, Intervals]] = {name: {} for name in (*self.evaluations, MEAN)}
        for system, (names, values, sizes) in self._values().items():
            parts = [*np.split(values, np.cumsum(sizes)[:-1]), values]
            for name, part in zip(intervals, parts, strict=True):
                if len(part) >= FEWEST:
                    ends = bootstrap_interval(part, sizes=sizes if name == MEAN else ())
                    intervals[name][system] = dict(zip(names, map(tuple, ends.T.tolist()), strict=True))
        return intervals

    def _values(self) -> dict[str, tuple[list[str], np.ndarray, list[int]]]:
        """Returns names of M metrics, their values [Q, M] on the questions of all sets, and the sizes, by system."""
        return {
            system: _stacked([systems[system] for systems in self.evaluations.values()])
            for system in next(iter(self.evaluations.values()))
        }

    def tables(self) -> str:
        """Formats a table of the sets per system, and one of the means of all systems, with notes below."""
        columns = [name for name in COLUMNS if name != NDCG]
        head = ["set", "questions", "candidates", NDCG, f"{CONFIDENCE:.0%} interval", *columns]
        lines = []
        for system, means in self.systems.items():
            rows = {name: systems[system] for name, systems in self.evaluations.items()}
            counts = {name: (f"{row.questions:,}", f"{row.candidates:,}") for name, row in rows.items()}
            counts[MEAN] = f"{sum(row.questions for row in rows.values()):,}", ""
            table = [head]
            for name, metrics in [*((name, row.metrics) for name, row in rows.items()), (MEAN, means)]:
                ends = self.intervals[name].get(system, {}).get(NDCG)
                interval = f"{ends[0]:.3f} to {ends[1]:.3f}" if ends else "-"
                values = [f"{metrics[column]:.3f}" for column in (NDCG, *columns)]
                table.append([name, *counts[name], values[0], interval, *values[1:]])
            lines += [f"{system}:", *aligned(table), ""]
        lines += [f"mean over the {len(self.evaluations)} sets:", format_table(self.systems, COLUMNS)]
        lines.append(
            f"mean: each set counts once; interval: {DRAWS:,} bootstrap resamples of the questions of each set, from "
            f"{FEWEST} questions"
        )
        return "\n".join([*lines, *self.bm25, *self.notes])

    __repr__ = tables

    def write(self, json_path: pathlib.Path) -> None:
        """Writes `results.json`: means over sets by system with their intervals, and the evaluations of each set."""
        about = {"split": self.split, "direction": "question_to_answer"}
        entries = [
            {
                **entry_of({"dataset": f"{self.dataset}/{name}", "set": name, **about}, "all", system, evaluation),
                "intervals": self.intervals[name].get(system, {}),
            }
            for name, systems in self.evaluations.items()
            for system, evaluation in systems.items()
        ]
        write_results(json_path, self.systems, entries, intervals=self.intervals[MEAN], **{SETS: [*self.evaluations]})


def _stacked(evaluations: list[Evaluation]) -> tuple[list[str], np.ndarray, list[int]]:
    names = list(evaluations[0].values)
    values = [np.stack([evaluation.values[name] for name in names], axis=1) for evaluation in evaluations]
    return names, np.concatenate(values), [evaluation.questions for evaluation in evaluations]
