"""Comparison of two systems by question, from the result files of their runs."""

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
# What a line holds beside its measures.
NO_MEASURES = ("id", "question", "ranks")


@dataclasses.dataclass(frozen=True, eq=False)
class Judged:
    """Results of a system for each question.

    Attributes:
      name: of the system and where it was found.
      question_ids: Q external ids.
      measures: M names.
      values: float64 [Q, M], fractions in [0, 1].
      candidates: in the pool; None if unknown.
    """

    name: str
    question_ids: tuple[str, ...]
    measures: tuple[str, ...]
    values: np.ndarray
    candidates: int | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison:
    """Comparison of a second system with a first.

    Attributes:
      first: results with the measures that both have.
      second: the same, with the questions in the order of the first.
      differences: one per measure.
      draws: of the bootstrap, and of the randomisation.
      confidence: of the intervals.
    """

    first: Judged
    second: Judged
    differences: list[Difference]
    draws: int
    confidence: float

    def rows(self) -> list[dict]:
        """Returns an entry per measure: means, difference with interval and p, questions that are better and worse."""
        first, second = self.first.values, self.second.values
        return [
            {
                "measure": name,
                "first": float(first[:, n].mean()),
                "second": float(second[:, n].mean()),
                "difference": found.mean,
                "low": found.low,
                "high": found.high,
                "p": found.p,
                "better": int((second[:, n] > first[:, n]).sum()),
                "worse": int((second[:, n] < first[:, n]).sum()),
            }
            for n, (name, found) in enumerate(zip(self.first.measures, self.differences, strict=True))
        ]

    def as_dict(self) -> dict:
        """Returns the comparison as an object for a JSON file."""
        about = {"first": self.first.name, "second": self.second.name, "questions": len(self.first.question_ids)}
        return {**about, "draws": self.draws, "confidence": self.confidence, "measures": self.rows()}

    def table(self) -> str:
        """Returns a table with one line per measure, and a legend."""
        lines = [
            ["measure", "first", "second", "difference", f"{self.confidence:.0%} interval", "p", "better", "worse"]
        ]
        for row in self.rows():
            interval = f"{row['low']:+.4f} to {row['high']:+.4f}"
            means = [f"{row[name]:.4f}" for name in ("first", "second")]
            counts = [f"{row[name]:,}" for name in ("better", "worse")]
            lines.append([row["measure"], *means, f"{row['difference']:+.4f}", interval, f"{row['p']:.4f}", *counts])
        return "\n".join(
            [
                f"first:  {self.first.name}",
                f"second: {self.second.name}",
                f"{len(self.first.question_ids):,} questions, the same for both",
                "",
                *aligned(lines),
                "",
                f"interval: paired bootstrap over questions; p: paired randomisation test; {self.draws:,} draws.",
                "better, worse: questions on which the second has more, or less, than the first.",
            ]
        )


def read_judged(run: pathlib.Path, system: str = "trained", pool: str = "") -> Judged:
    """Reads the measures of each question from the files of a run or of `endx evaluate`.

    Args:
      run: a workdir, for its test split; a folder written by `endx evaluate`; or a `.per_question.jsonl` file, for
        which the other arguments are ignored.
      system: such as `bm25`, `untrained` or `trained`.
      pool: the ranked pool; empty: the first pool of the run.

    Raises:
      EndxError: there is no such file (the message lists the existing ones), or it is damaged.
    """
    if run.is_file():
        return _read(run, str(run), None)
    if not run.is_dir():
        raise EndxError(f"{run}: no such file or folder")
    sizes = _sizes(run / RESULTS)
    first = next((name for name, _ in sizes), "")
    own = run / EVALUATION / "test"
    folder = own if own.is_dir() else run
    if pool and pool != first:
        folder /= pool_folder(pool)
    file = folder / f"{system}{ENDING}"
    if not file.is_file():
        systems = sorted(found.name.removesuffix(ENDING) for found in folder.glob(f"*{ENDING}"))
        known = f"there are {', '.join(systems)}{nearest(system, systems)}" if systems else "run endx evaluate first"
        raise EndxError(f"{folder} has no {file.name}; {known}")
    pool = pool or first
    return _read(file, f"{run}, {system}" + (f", pool {pool}" if pool else ""), sizes.get((pool, system)))


def compare(first: Judged, second: Judged, *, draws: int = 10_000, confidence: float = 0.95) -> Comparison:
    """Compares two systems on every measure that both have: see `paired_difference`.

    Raises:
      EndxError: their questions or numbers of candidates differ, or they have no measure in common.
    """
    for a, b in ((first, second), (second, first)):
        missing = sorted(set(a.question_ids) - set(b.question_ids))
        if missing:
            raise EndxError(
                f"{len(missing):,} of the {len(a.question_ids):,} questions of {a.name} are none of {b.name}, such as "
                f"{missing[0]!r}: evaluate both on the same data"
            )
    if first.candidates and second.candidates and first.candidates != second.candidates:
        raise EndxError(
            f"{first.name} ranked {first.candidates:,} candidates and {second.name} {second.candidates:,}: choose one "
            "--pool, or evaluate both on the same data"
        )
    measures = [name for name in first.measures if name in second.measures]
    if not measures:
        raise EndxError(f"{first.name} and {second.name} have no measure in common: evaluate both again")
    place = {name: row for row, name in enumerate(second.question_ids)}
    a = _chosen(first, range(len(first.question_ids)), measures)
    b = _chosen(second, [place[name] for name in first.question_ids], measures)
    found = paired_difference(a.values, b.values, draws=draws, confidence=confidence)
    return Comparison(a, b, found, draws, confidence)


def _chosen(judged: Judged, rows: Sequence[int], measures: Sequence[str]) -> Judged:
    columns = [judged.measures.index(name) for name in measures]
    return Judged(
        judged.name,
        tuple(judged.question_ids[row] for row in rows),
        tuple(measures),
        judged.values[np.ix_(list(rows), columns)],
        judged.candidates,
    )


def _read(file: pathlib.Path, name: str, candidates: int | None) -> Judged:
    ids: dict[str, int] = {}
    measures: tuple[str, ...] = ()
    rows = []
    for number, where, row in row_files.objects(str(file)):
        measures = measures or tuple(key for key in row if key not in NO_MEASURES)
        own = json_files.text(row.get("id"), f"{where}: 'id'")
        if own in ids:
            raise EndxError(f"{where}: question {own!r} stands on line {ids[own]} too; ids must be unique")
        ids[own] = number
        if not measures:
            raise EndxError(f"{where}: no measures; evaluate the run again")
        rows.append([json_files.number(row.get(name), f"{where}: {json_files.shown(name)}") for name in measures])
    return Judged(name, tuple(ids), measures, np.asarray(rows, np.float64), candidates)


def _sizes(file: pathlib.Path) -> dict[tuple[str, str], int]:
    """Returns the number of candidates that each (pool, system) ranked, in the order of the results."""
    if not file.is_file():
        return {}
    return {
        (entry["pool"], entry["system"]): json_files.whole(
            entry.get("candidates"), f"{file}: 'candidates' of {entry['system']!r}"
        )
        for entry in read_results(file)
        if entry["direction"] == "question_to_answer"
    }
