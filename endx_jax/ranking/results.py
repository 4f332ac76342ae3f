"""Results of systems on a data set, or on those of a suite such as NanoBEIR, as tables and in `results.json`."""

import dataclasses
import functools
import json
import pathlib
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from endx_jax import json_files
from endx_jax.data.sets.records import Pools
from endx_jax.data.settings import PARAGRAPHS
from endx_jax.errors import counted
from endx_jax.files import write_text
from endx_jax.metrics import TIE_RULE
from endx_jax.metrics.ranking import RECALLS
from endx_jax.metrics.significance import CONFIDENCE, DRAWS, FEWEST, bootstrap_interval, mean_over_sets
from endx_jax.ranking import trec
from endx_jax.ranking.bm25 import BM25, without_words
from endx_jax.ranking.evaluate import MEAN, NDCG, Evaluation, ScoreBlock, evaluate_set
from endx_jax.ranking.hybrid import Hybrid
from endx_jax.ranking.systems import DenseResult, EncodeSide, bm25_scores, evaluate_dense

# Columns of the tables; results.json has more cutoffs.
COLUMNS = ("mrr", "mrr@10", "p@1", "recall@1", "recall@5", "recall@10", "hit@1", "hit@5", "ndcg@10", "map")
SETS = "sets"  # key of `results.json` for the names of a suite's data sets
OWN_ID = "questions leave out the document with their own text or, as BEIR's evaluation does, with their own id"
# Number of questions below which the width of the interval is printed: 0.98 / sqrt(FEW) = 0.057.
FEW = 300
# Columns for paragraphs (RR).
PARAGRAPH_COLUMNS = ("mrr", *(f"recall@{n}" for n in RECALLS), "avg_recall")
# Lower and upper end by metric.
Intervals = dict[str, tuple[float, float]]


@dataclasses.dataclass(repr=False)
class Results:
    """Evaluations of several systems on the same questions, against one pool or several.

    Attributes:
      dataset: name of the data set.
      split: split of the data set.
      pools: the set with each pool, by the pool's name; the first is the primary one.
      hybrid: fusion of BM25 with the model; None if the model scores pairs, or is not fused.
      evaluations: evaluations by pool and system, in the order of the tables.
      sections: further values of `results.json` by key.
      notes: lines below the tables that explain them.
      direction: `question_to_answer` or `answer_to_question`.
      reverse: results of the other direction; None if not requested.
    """

    dataset: str
    split: str
    pools: Pools
    hybrid: Hybrid | None = None
    evaluations: dict[str, dict[str, Evaluation]] = dataclasses.field(default_factory=dict)
    sections: dict[str, Any] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)
    direction: str = "question_to_answer"
    reverse: "Results | None" = None

    def rank_both_ways(self) -> None:
        """Adds the reverse direction, which ranks questions for each answer."""
        pools = Pools({pool: records.reversed() for pool, records in self.pools.items()})
        self.reverse = Results(self.dataset, self.split, pools, direction="answer_to_question")

    def add(self, system: str, evaluations: Mapping[str, Evaluation]) -> None:
        """Adds a system's evaluations by pool."""
        for pool, evaluation in evaluations.items():
            self.evaluations.setdefault(pool, {})[system] = evaluation

    def add_bm25(self) -> None:
        """Evaluates BM25 and adds it."""
        self.add("bm25", {pool: evaluate_set(scores, self.pools[pool]) for pool, scores in self._bm25.items()})
        ranked = self.evaluations[self.pools.primary_name]["bm25"].top_scores[:, 0] > 0
        self.notes += without_words(int((~ranked).sum()), len(ranked), self.pools.primary.text_language)
        if self.reverse:
            self.reverse.add_bm25()

    @functools.cached_property
    def _bm25(self) -> dict[str, ScoreBlock]:
        return bm25_scores(self.pools)

    def fuse(self, pool: str, dense: ScoreBlock, hybrid: Hybrid | None = None) -> ScoreBlock:
        """Returns the scorer of a pool by a fusion, by default `hybrid`, for `evaluate_dense`."""
        fusion = hybrid or self.hybrid
        assert fusion
        return fusion.score_block(dense, self._bm25[pool])

    def add_dense(self, system: str, result: DenseResult, fused: str = "hybrid", hybrid: Hybrid | None = None) -> None:
        """Adds a dense system's evaluations, alone and as the system `fused` with BM25, by default by `hybrid`."""
        self.add(system, result.evaluations)
        if result.fused:
            self.add(fused, result.fused)
            self.notes.append(f"{fused}: {system} and BM25 over the whole pool, {hybrid or self.hybrid}")
        if self.reverse:
            self.reverse.add(system, result.reverse)

    def tables(self) -> str:
        """Formats one table per pool, with notes below; without evaluations, only notes."""
        if not self.evaluations:
            return "\n".join(self.notes)
        lines = self._rankings()
        if self.reverse:
            lines += ["questions ranked for each answer:", *self.reverse._rankings()]
        lines.append(f"bm25: {BM25.description(self.pools.primary.text_language)}")
        primary, systems = self.pools.primary, self.evaluations[self.pools.primary_name]
        if alike := sum(map(bool, primary.excluded or ())):
            lines.append(f"{alike:,} {OWN_ID}")
        if len(primary.questions) < FEW:
            lines.append(
                f"few questions: a share of 0.5 of {len(primary.questions)} has a 95 % interval of plus or minus "
                f"{min(0.5, 0.98 / len(primary.questions) ** 0.5):.2f}"
            )
        models = {name: evaluation.metrics.get("mrr", 0.0) for name, evaluation in systems.items() if name != "bm25"}
        if len({*models.values()}) == 1 and (len(models) > 1 or 1 in models.values()):
            by = ", by data.test_path or a larger data.test_fraction" if self.split else ""
            lines.append(
                f"{len(primary.questions):,} questions over {len(primary.candidates):,} candidates are too few to judge"
                f" {', '.join(models)}, all with mrr {max(models.values()):.3f}: use more questions and candidates{by}"
            )
        return "\n".join([*lines, *self.notes])

    __repr__ = tables

    def _rankings(self) -> list[str]:
        lines = []
        for pool, systems in self.evaluations.items():
            if len(self.evaluations) > 1:
                questions, candidates = len(self.pools[pool].questions), len(self.pools[pool].candidates)
                lines.append(f"pool {pool}, {counted(questions, 'question')}, {counted(candidates, 'candidate')}:")
            columns = PARAGRAPH_COLUMNS if pool == PARAGRAPHS else COLUMNS
            lines += [format_table({name: evaluation.metrics for name, evaluation in systems.items()}, columns), ""]
        return lines

    def write(self, json_path: pathlib.Path, rankings: pathlib.Path) -> None:
        """Writes the JSON, and TREC files: the judgements, and each system's run and per-question metrics.

        Args:
          json_path: path of `results.json`.
          rankings: the folder for `qrels.trec`, `SYSTEM.run.trec` and `SYSTEM.per_question.jsonl` of the first pool;
            other pools (such as `answers-at-least-8`, see `pool_folder`) and the reverse direction have subfolders.
        """
        self._write_rankings(rankings)
        primary = self.evaluations.get(self.pools.primary_name, {})
        means = {system: evaluation.metrics for system, evaluation in primary.items()}
        write_results(json_path, means, self._entries(), **self.sections)

    def _entries(self) -> list[dict]:
        about = {"dataset": self.dataset, "split": self.split, "direction": self.direction}
        entries = [
            entry_of(about, pool, name, evaluation)
            for pool, systems in self.evaluations.items()
            for name, evaluation in systems.items()
        ]
        return entries + self.reverse._entries() if self.reverse else entries

    def _write_rankings(self, rankings: pathlib.Path) -> None:
        for number, (pool, systems) in enumerate(self.evaluations.items()):
            records, folder = self.pools[pool], rankings / pool_folder(pool) if number else rankings
            ids = (records.question_ids, records.candidate_ids)
            trec.write_qrels(folder / trec.QRELS, *ids, records.qrels, records.gains)
            for name, evaluation in systems.items():
                trec.write_system(folder, name, *ids, evaluation, records.groups)
        if self.reverse:
            self.reverse._write_rankings(rankings / self.reverse.direction)


def report(
    pools: Pools, systems: Mapping[str, EncodeSide], *, reverse: bool = False, fused: str = "hybrid", **about: Any
) -> tuple[Results, list[DenseResult]]:
    """Ranks pools by BM25, unless they have no questions, and by dense systems, each alone and fused with BM25.

    `systems` are encoders of texts by the name of the system: see `evaluate_dense`. `reverse` also ranks the questions
    for each answer. `about` has `dataset`, `split` and `hybrid` of `Results`; without `hybrid` no system is fused, and
    `fused` is the name of the system that is. Returns the results, and those of each system with its embeddings.
    """
    results, ranked = Results(**{"dataset": "", "split": ""} | about, pools=pools), []
    if reverse:
        results.rank_both_ways()
    if pools.primary.questions:
        results.add_bm25()
    for name, encode in systems.items():
        ranked.append(evaluate_dense(encode, pools, reverse=reverse, fuse=results.fuse if results.hybrid else None))
        results.add_dense(name, ranked[-1], fused)
    return results, ranked


def entry_of(about: Mapping[str, Any], pool: str, system: str, evaluation: Evaluation) -> dict:
    """Returns an entry of `evaluations` in `results.json`; `about` names its data and the direction."""
    counts = {"questions": evaluation.questions, "candidates": evaluation.candidates}
    return {**about, "pool": pool, "system": system, "metrics": evaluation.metrics, **counts}


def write_results(
    file: pathlib.Path, systems: Mapping[str, Mapping[str, float]], entries: Sequence[dict], **sections: Any
) -> None:
    """Writes `results.json`: the primary metrics of each system, sections, and the entries of all evaluations."""
    write_text(file, json.dumps({"systems": systems, **sections, "evaluations": entries}, indent=1) + "\n")


def read_results(file: pathlib.Path) -> list[dict]:
    """Returns the evaluations in a `results.json`.

    Each has the strings `pool`, `system` and `direction`, and `metrics` with numbers; other values are not checked.
    """
    entries = json_files.as_list(json_files.value(json_files.read_json_file(file), "evaluations", str(file)), str(file))
    for number, entry in enumerate(entries):
        where = f"{file}: evaluation {number}"
        for key in ("pool", "system", "direction"):
            json_files.text_at(entry, key, where, may_be_empty=True)
        metrics = json_files.as_object(json_files.value(entry, "metrics", where), f"{where}: 'metrics'")
        for name, value in metrics.items():
            json_files.number(value, f"{where}: {json_files.shown(name)}")
    return entries


def pool_folder(pool: str) -> str:
    """Returns the folder name of a pool, without the characters that some file systems refuse."""
    return pool.replace(">=", "-at-least-")


def format_table(rows: Mapping[str, Mapping[str, float]], keys: Sequence[str]) -> str:
    """Formats a table with one line per system and one column per metric of `keys`, with three decimals.

    The best values of a column are marked with `*` unless all are equal; missing values are shown as `-`. The last
    lines state the tie rule.
    """
    values = {key: {row[key] for row in rows.values() if key in row} for key in keys}
    best = {key: max(column) if len(column) > 1 else None for key, column in values.items()}

    def cell(row, key):
        if key not in row:
            return "- "
        return f"{row[key]:.3f}" + ("*" if row[key] == best[key] else " ")

    lines = [["system", *(f"{key} " for key in keys)]]
    lines += [[name, *(cell(row, key) for key in keys)] for name, row in rows.items()]
    notes = textwrap.fill(f"* best of its column. {TIE_RULE}", width=100)
    return "\n".join([*aligned(lines), notes])


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Formats rows as lines: the first column left-aligned, the others right-aligned, two spaces between."""
    first, *others = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join([row[0].ljust(first), *map(str.rjust, row[1:], others)]).rstrip() for row in rows]


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
