"""Comparison of two systems on the same questions, from the files of their evaluations."""

import dataclasses
import pathlib
from collections.abc import Sequence

import numpy as np

from endx_jax import json_files
from endx_jax.data.readers import row_files
from endx_jax.errors import EndxError, nearest
from endx_jax.experiment.workdir import EVALUATION, RESULTS
from endx_jax.metrics.significance import Difference, paired_difference
from endx_jax.retrieval.results import pool_folder, read_results
from endx_jax.retrieval.tables import aligned

ENDING = ".per_question.jsonl"
FEWEST = 30  # questions, below which intervals and p-values are not given
NO_METRICS = ("id", "question", "ranks")  # keys of a line that are not metrics


@dataclasses.dataclass(frozen=True, eq=False)
class SystemResults:
    """Metrics of a system on each question.

    Attributes:
      name: name of the system and path of its results.
      question_ids: external ids of Q questions.
      metrics: names of M metrics.
      values: float64 [Q, M], fractions in [0, 1].
      candidates: number of candidates in the pool; None if unknown.
    """

    name: str
    question_ids: tuple[str, ...]
    metrics: tuple[str, ...]
    values: np.ndarray
    candidates: int | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison:
    """Comparison of two systems on the questions and metrics that they share.

    Attributes:
      first: results of the first system.
      second: results of the second system, with the questions and metrics in the order of the first.
      differences: difference (second minus first) in each metric.
      draws: number of draws of the bootstrap and of the randomisation test.
      confidence: confidence level of the intervals.
    """

    first: SystemResults
    second: SystemResults
    differences: list[Difference]
    draws: int
    confidence: float

    def rows(self) -> list[dict]:
        """Returns one entry per metric: means, difference, interval, p-value, numbers of better and worse questions.

        Interval and p-value are None for fewer than `FEWEST` questions.
        """
        first, second = self.first.values, self.second.values
        enough = len(first) >= FEWEST
        return [
            {
                "measure": name,
                "first": float(first[:, n].mean()),
                "second": float(second[:, n].mean()),
                "difference": difference.mean,
                "low": difference.low if enough else None,
                "high": difference.high if enough else None,
                "p": difference.p if enough else None,
                "better": int((second[:, n] > first[:, n]).sum()),
                "worse": int((second[:, n] < first[:, n]).sum()),
            }
            for n, (name, difference) in enumerate(zip(self.first.metrics, self.differences, strict=True))
        ]

    def as_dict(self) -> dict:
        """Returns the comparison as a dictionary for a JSON file."""
        about = {"first": self.first.name, "second": self.second.name, "questions": len(self.first.question_ids)}
        return {**about, "draws": self.draws, "confidence": self.confidence, "measures": self.rows()}

    def table(self) -> str:
        """Returns a table with one line per metric and a legend."""
        lines = [
            ["measure", "first", "second", "difference", f"{self.confidence:.0%} interval", "p", "better", "worse"]
        ]
        for row in self.rows():
            enough = row["p"] is not None
            interval = f"{row['low']:+.4f} to {row['high']:+.4f}" if enough else "-"
            p = f"{row['p']:.4f}" if enough else "-"
            means = [f"{row[name]:.4f}" for name in ("first", "second")]
            counts = [f"{row[name]:,}" for name in ("better", "worse")]
            lines.append([row["measure"], *means, f"{row['difference']:+.4f}", interval, p, *counts])
        return "\n".join(
            [
                f"first:  {self.first.name}",
                f"second: {self.second.name}",
                f"{len(self.first.question_ids):,} questions, the same for both",
                "",
                *aligned(lines),
                "",
                f"interval: paired bootstrap over questions; p: paired randomisation test; {self.draws:,} draws."
                if len(self.first.question_ids) >= FEWEST
                else f"fewer than {FEWEST} questions: no interval and no p-value",
                "better, worse: questions on which the second system scores higher, or lower, than the first.",
            ]
        )


def read_per_question(run: pathlib.Path, system: str = "trained", pool: str = "") -> SystemResults:
    """Reads the metrics of each question that a run or `endx evaluate` wrote.

    Args:
      run: workdir, for its test split; folder of `endx evaluate`; or a `.per_question.jsonl` file, for which the other
        arguments are ignored.
      system: name of the system, such as `bm25`, `untrained` or `trained`.
      pool: name of the retrieval pool; empty for the first pool of the run.

    Raises:
      EndxError: there is no such file, or it is damaged.
    """
    if run.is_file():
        return _read(run, str(run), None)
    if not run.is_dir():
        raise EndxError(f"{run}: no such file or folder")
    sizes = _sizes(run / RESULTS)
    first = next((name for name, _ in sizes), "")
    test_folder = run / EVALUATION / "test"
    folder = test_folder if test_folder.is_dir() else run
    if pool and pool != first:
        folder /= pool_folder(pool)
    file = folder / f"{system}{ENDING}"
    if not file.is_file():
        systems = sorted(entry.name.removesuffix(ENDING) for entry in folder.glob(f"*{ENDING}"))
        known = f"there are {', '.join(systems)}{nearest(system, systems)}" if systems else "run endx evaluate first"
        raise EndxError(f"{folder} has no {file.name}; {known}")
    pool = pool or first
    return _read(file, f"{run}, {system}" + (f", pool {pool}" if pool else ""), sizes.get((pool, system)))


def compare(
    first: SystemResults, second: SystemResults, *, draws: int = 10_000, confidence: float = 0.95
) -> Comparison:
    """Compares two systems on every metric that both have: see `paired_difference`.

    Raises:
      EndxError: the systems were evaluated on different questions or numbers of candidates, or have no common metric.
    """
    for a, b in ((first, second), (second, first)):
        missing = sorted(set(a.question_ids) - set(b.question_ids))
        if missing:
            raise EndxError(
                f"{len(missing):,} of the {len(a.question_ids):,} questions of {a.name} are not in {b.name}, such as "
                f"{missing[0]!r}: evaluate both on the same data"
            )
    if first.candidates and second.candidates and first.candidates != second.candidates:
        raise EndxError(
            f"{first.name} ranked {first.candidates:,} candidates and {second.name} {second.candidates:,}: choose one "
            "--pool, or evaluate both on the same data"
        )
    metrics = [name for name in first.metrics if name in second.metrics]
    if not metrics:
        raise EndxError(f"{first.name} and {second.name} have no common metric: evaluate both again")
    row_of = {name: row for row, name in enumerate(second.question_ids)}
    a = _select(first, range(len(first.question_ids)), metrics)
    b = _select(second, [row_of[name] for name in first.question_ids], metrics)
    differences = paired_difference(a.values, b.values, draws=draws, confidence=confidence)
    return Comparison(a, b, differences, draws, confidence)


def _select(results: SystemResults, rows: Sequence[int], metrics: Sequence[str]) -> SystemResults:
    columns = [results.metrics.index(name) for name in metrics]
    return SystemResults(
        results.name,
        tuple(results.question_ids[row] for row in rows),
        tuple(metrics),
        results.values[np.ix_(list(rows), columns)],
        results.candidates,
    )


def _read(file: pathlib.Path, name: str, candidates: int | None) -> SystemResults:
    lines: dict[str, int] = {}
    metrics: tuple[str, ...] = ()
    rows = []
    for number, where, row in row_files.rows(str(file)):
        metrics = metrics or tuple(key for key in row if key not in NO_METRICS)
        question = json_files.text(row.get("id"), f"{where}: 'id'")
        if question in lines:
            raise EndxError(f"{where}: question {question!r} is also on line {lines[question]}; ids must be unique")
        lines[question] = number
        if not metrics:
            raise EndxError(f"{where}: no metrics; evaluate the run again")
        rows.append([json_files.number(row.get(name), f"{where}: {json_files.shown(name)}") for name in metrics])
    return SystemResults(name, tuple(lines), metrics, np.asarray(rows, np.float64), candidates)


def _sizes(file: pathlib.Path) -> dict[tuple[str, str], int]:
    """Returns the number of candidates by (pool, system), in the order of the results."""
    if not file.is_file():
        return {}
    return {
        (entry["pool"], entry["system"]): json_files.whole(
            entry.get("candidates"), f"{file}: 'candidates' of {entry['system']!r}"
        )
        for entry in read_results(file)
        if entry["direction"] == "question_to_answer"
    }
