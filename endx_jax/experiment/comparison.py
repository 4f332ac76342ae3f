"""Comparison of two systems on the same questions, from the files of their evaluations."""

import contextlib
import dataclasses
import pathlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from endx_jax import json_files
from endx_jax.data.formats import row_files, text_files
from endx_jax.errors import EndxError, counted, nearest
from endx_jax.experiment.config import config_changes
from endx_jax.experiment.workdir import CONFIG, EVALUATION, RESULTS, TEST, read_config
from endx_jax.metrics.significance import CONFIDENCE, DRAWS, FEWEST, mean_over_sets, paired_difference
from endx_jax.ranking.evaluate import NDCG
from endx_jax.ranking.results import SETS, aligned, pool_folder, read_results
from endx_jax.ranking.trec import QRELS, RUN, encoded, measure_run, read_qrels, read_run

ENDING = ".per_question.jsonl"
GROUP = "group"  # key of a line for the subject of its question
NO_METRICS = ("id", GROUP, "question", "ranks")  # keys of a line that are not metrics


@dataclasses.dataclass(frozen=True, eq=False)
class SystemResults:
    """Metrics of a system on each question.

    Attributes:
      name: name of the system and path of its results.
      question_ids: external ids of Q questions.
      metrics: names of M metrics.
      values: float64 [Q, M], fractions in [0, 1].
      candidates: number of candidates in the pool; None if unknown.
      sets: numbers of questions of the data sets of a suite, one set after the other; empty for a single set.
      groups: subject of each question, such as its article; empty if unknown.
      answers: right answer of each question, of several the one with most questions; empty if unknown.
    """

    name: str
    question_ids: tuple[str, ...]
    metrics: tuple[str, ...]
    values: np.ndarray
    candidates: int | None = None
    sets: Mapping[str, int] = dataclasses.field(default_factory=dict)
    groups: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()

    @property
    def clusters(self) -> tuple[str, ...]:
        """Cluster of each question: its subject, or its answer if there are fewer than `FEWEST` subjects."""
        return _clusters(self.groups, self.answers)

    def columns(self, metrics: Sequence[str]) -> np.ndarray:
        """Returns the values of some metrics, [Q, len(metrics)]."""
        return self.values[:, [self.metrics.index(name) for name in metrics]]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Comparison of two systems on the questions and metrics that they share.

    Attributes:
      first: name of the first system.
      second: name of the second system.
      questions: number of questions.
      rows: an entry per metric: means, difference (second minus first), interval, p-value, numbers of better and worse
        questions. For a suite, means are over its sets, each of which counts once. Interval and p-value are None if
        there are fewer than `FEWEST` questions, or groups of them.
      sets: such rows of each set of a suite.
      groups: number of clusters of questions that were resampled and swapped; 0 if single questions were.
      notes: lines below the table: on TREC runs, and on settings of the runs that differ.
    """

    first: str
    second: str
    questions: int
    rows: list[dict]
    sets: Mapping[str, list[dict]]
    groups: int = 0
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict:
        """Returns the comparison as a dictionary for a JSON file."""
        about = {"first": self.first, "second": self.second, "questions": self.questions}
        drawn = {"draws": DRAWS, "confidence": CONFIDENCE, "clustered": bool(self.groups)}
        return {**about, **drawn, "measures": self.rows, **({"sets": self.sets} if self.sets else {})}

    def __repr__(self) -> str:
        """Returns a table with one line per metric, for a suite also one with a line per set, a legend and notes."""
        of_suite = f" in {len(self.sets)} sets" if self.sets else ""
        unit = f"{self.groups:,} groups of questions" if self.groups else "questions"
        return "\n".join(
            [
                f"first:  {self.first}",
                f"second: {self.second}",
                f"{counted(self.questions, 'question')}{of_suite}, the same for both",
                "",
                *_lines("measure", {row["measure"]: row for row in self.rows}),
                "",
                *self._lines_of_sets(),
                f"fewer than {FEWEST} {'groups of ' * bool(self.groups)}questions: no interval and no p-value"
                if self.rows[0]["p"] is None
                else f"interval: paired bootstrap over {unit}; p: paired randomisation test; {DRAWS:,} draws.",
                "better, worse: questions on which the second system scores higher, or lower, than the first.",
                *self.notes,
            ]
        )

    def _lines_of_sets(self) -> list[str]:
        """Returns a table of the sets of a suite by nDCG@10, or by the first metric; none for a single set."""
        if not self.sets:
            return []
        metrics = [row["measure"] for row in self.rows]
        metric = NDCG if NDCG in metrics else metrics[0]
        rows = {name: of_set[metrics.index(metric)] for name, of_set in self.sets.items()}
        note = "The measures above are means over sets, each of which counts once; questions are resampled within sets."
        return [f"{metric} of each set:", *_lines("set", rows), "", note]


def _lines(title: str, rows: Mapping[str, dict]) -> list[str]:
    lines = [[title, "first", "second", "difference", f"{CONFIDENCE:.0%} interval", "p", "better", "worse"]]
    for name, row in rows.items():
        means, counts = (f"{row['first']:.4f}", f"{row['second']:.4f}"), (f"{row['better']:,}", f"{row['worse']:,}")
        enough = row["p"] is not None
        tested = (f"{row['low']:+.4f} to {row['high']:+.4f}", f"{row['p']:.4f}") if enough else ("-", "-")
        lines.append([name, *means, f"{row['difference']:+.4f}", *tested, *counts])
    return aligned(lines)


def read_per_question(run: pathlib.Path, system: str = "trained", pool: str = "") -> SystemResults:
    """Reads the metrics of each question that a run or `endx evaluate` wrote.

    Args:
      run: workdir, for its test split; folder of `endx evaluate`, of a suite too; or a `.per_question.jsonl` file, for
        which the other arguments are ignored.
      system: name of the system, such as `bm25`, `untrained` or `trained`.
      pool: name of the retrieval pool; empty for the first pool of the run.

    Raises:
      EndxError: there is no such file, or it is damaged.
    """
    if SETS in (results := json_files.read_optional(run / RESULTS)):
        return _read_suite(run, json_files.list_at(results, SETS, str(run / RESULTS)), system, pool)
    return _read(*_located(run, system, pool))


def read_pair(
    runs: Sequence[pathlib.Path], systems: Sequence[str], pool: str = "", judgements: pathlib.Path | None = None
) -> tuple[SystemResults, SystemResults, list[str]]:
    """Reads the results of two systems, with a note on each TREC run.

    If one is a TREC run of any tool, or there are `judgements`, a TREC file of right candidates, both are measured by
    their TREC runs, from equally many candidates of each question.
    """
    pairs = [*zip(runs, systems, strict=True)]
    if not judgements and not any(map(_is_trec_run, runs)):
        first, second = (read_per_question(run, system, pool) for run, system in pairs)
        return first, second, []
    located = [_located(run, system, pool)[:2] for run, system in pairs]
    beside = [file.parent / QRELS for file, _ in located if (file.parent / QRELS).is_file()]
    if not (judgements := judgements or next(iter(beside), None)):
        raise EndxError(f"{runs[0]} and {runs[1]} are TREC runs; name the file of right candidates by qrels=FILE")
    right = read_qrels(judgements)
    rankings = [read_run(file.with_name(file.name.replace(ENDING, RUN)), right) for file, _ in located]
    depth = min(_depth(run) for run in rankings)
    notes = [
        f"{name}: up to {counted(_depth(run), 'candidate')} a question, of which {depth:,} count"
        + _unmatched(name, run, right, judgements)
        for (_, name), run in zip(located, rankings, strict=True)
    ]
    measured, answers = [measure_run(run, right, depth) for run in rankings], _answers(right, right)
    first, second = (
        SystemResults(name, tuple(right), metrics, values, answers=answers)
        for (_, name), (metrics, values) in zip(located, measured, strict=True)
    )
    return first, second, notes


def _is_trec_run(run: pathlib.Path) -> bool:
    return run.is_file() and next(text_files.lines(str(run)))[1][0] != "{"


def _depth(run: Mapping[str, Mapping]) -> int:
    return max(map(len, run.values()))


def _unmatched(name: str, run: Mapping[str, Mapping], right: Mapping[str, Mapping], judgements: pathlib.Path) -> str:
    """Returns the part of a note on questions that only the run or only the judgements have; they must share some."""
    missing, listed = sorted(right.keys() - run.keys()), set[str]().union(*run.values())
    if len(missing) == len(right) or not any(listed & grades.keys() for grades in right.values()):
        kind, ids = ("question", run) if len(missing) == len(right) else ("candidate", listed)
        example = min(ids, default="")
        raise EndxError(f"{name}: no {kind} id, such as {example!r}, is in {judgements}: use the same ids in both")
    note = ""
    if missing:
        note += f"; {len(missing):,} of {len(right):,} questions, such as {missing[0]!r}, are missing and count as 0"
    if more := sorted(run.keys() - right.keys()):
        note += f"; {len(more):,} questions, such as {more[0]!r}, have no right candidate and are left out"
    return note


def _located(run: pathlib.Path, system: str, pool: str) -> tuple[pathlib.Path, str, int | None]:
    """Returns the file of a system's results, which `run` may be itself, its name, and the number of candidates."""
    if run.is_file():
        return run, str(run), None
    if not run.is_dir():
        raise EndxError(f"{run}: no such file or folder")
    sizes = _sizes(run / RESULTS)
    first = next((name for name, _ in sizes), "")
    test_folder = run / EVALUATION / TEST
    folder = test_folder if test_folder.is_dir() else run
    if pool and pool != first:
        folder /= pool_folder(pool)
    file = folder / f"{system}{ENDING}"
    if not file.is_file():
        systems = sorted(entry.name.removesuffix(ENDING) for entry in folder.glob(f"*{ENDING}"))
        hint = f"there are {', '.join(systems)}{nearest(system, systems)}" if systems else "run endx evaluate first"
        raise EndxError(f"{folder} has no {file.name}; {hint}")
    pool = pool or first
    return file, f"{run}, {system}" + (f", pool {pool}" if pool else ""), sizes.get((pool, system))


def _read_suite(run: pathlib.Path, names: Sequence[object], system: str, pool: str) -> SystemResults:
    """Reads the results of a system on the sets of a suite; a question's id begins with the name of its set."""
    if not names:
        raise EndxError(f"{run / RESULTS}: {SETS!r} is empty; evaluate the suite again")
    results = {}
    for value in names:
        name = json_files.as_text(value, f"{run / RESULTS}: a name in {SETS!r}")
        results[name] = read_per_question(run / name, system, pool)
    first = next(iter(results.values()))
    metrics = [metric for metric in first.metrics if all(metric in part.metrics for part in results.values())]
    return SystemResults(
        f"{run}, {system}" + (f", pool {pool}" if pool else ""),
        tuple(f"{name}/{question}" for name, part in results.items() for question in part.question_ids),
        tuple(metrics),
        np.concatenate([part.columns(metrics) for part in results.values()]),
        sum(part.candidates or 0 for part in results.values()) or None,
        {name: len(part.question_ids) for name, part in results.items()},
        *(_prefixed({name: getattr(part, kind) for name, part in results.items()}) for kind in ("groups", "answers")),
    )


def _prefixed(parts: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Returns the names of all sets after those of their set; none if a set has none."""
    return tuple(f"{part}/{name}" for part, names in parts.items() for name in names) if all(parts.values()) else ()


def compare_systems(first: SystemResults, second: SystemResults, *, clustered: bool = False) -> Comparison:
    """Compares two systems by `paired_difference`, `clustered` by `SystemResults.clusters`.

    Raises:
      EndxError: the systems have different questions or numbers of candidates or no common metric, or groups are needed
        and unknown.
    """
    if clustered and not first.clusters:
        raise EndxError(f"{first.name}: its questions have no groups, such as articles; evaluate again, or leave them")
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
    order = [row_of[name] for name in first.question_ids]
    before, after = first.columns(metrics), second.columns(metrics)[order]
    sizes, sets = [*first.sets.values()], {}
    ends = np.cumsum([0, *sizes]).tolist()
    for name, part in zip(first.sets, map(slice, ends, ends[1:]), strict=True):
        of_set = _clusters(first.groups[part], first.answers[part]) if clustered else ()
        sets[name] = _rows(metrics, before[part], after[part], of_set)
    clusters = first.clusters if clustered else ()
    rows = _rows(metrics, before, after, clusters, sizes)
    return Comparison(first.name, second.name, len(order), rows, sets, len(set(clusters)))


def _rows(
    metrics: Sequence[str], first: np.ndarray, second: np.ndarray, clusters: Sequence[str], sizes: Sequence[int] = ()
) -> list[dict]:
    """Compares values [Q, M] of M metrics: see `Comparison.rows`."""
    enough = (len(set(clusters)) or len(first)) >= FEWEST
    differences = paired_difference(first, second, sizes=sizes, clusters=clusters)
    means = (mean_over_sets(values, sizes).tolist() for values in (first, second))
    counts = (better.sum(axis=0).tolist() for better in (second > first, second < first))
    return [
        {"measure": name, "first": before, "second": after, "difference": found.mean}
        | {key: getattr(found, key) if enough else None for key in ("low", "high", "p")}
        | {"better": better, "worse": worse}
        for name, before, after, found, better, worse in zip(metrics, *means, differences, *counts, strict=True)
    ]


def _clusters(groups: tuple[str, ...], answers: tuple[str, ...]) -> tuple[str, ...]:
    return groups if len(set(groups)) >= FEWEST else answers or groups


def changed_settings(first: pathlib.Path, second: pathlib.Path) -> list[str]:
    """Returns the settings in which two runs, by workdirs or paths in them, differ; none if a run is not found."""
    with contextlib.suppress(EndxError, StopIteration):  # a `config.json` of another program, or none
        homes = [
            next(path for path in (run, *run.parents)[:4] if "objective" in json_files.read_optional(path / CONFIG))
            for run in (first.absolute(), second.absolute())
        ]
        return config_changes(*map(read_config, homes))
    return []


def _read(file: pathlib.Path, name: str, candidates: int | None) -> SystemResults:
    lines: dict[str, int] = {}
    metrics: tuple[str, ...] = ()
    rows, groups = [], []
    for number, where, row in row_files.read_rows(str(file)):
        metrics = metrics or tuple(key for key in row if key not in NO_METRICS)
        question = json_files.as_text(row.get("id"), f"{where}: 'id'")
        if question in lines:
            raise EndxError(f"{where}: question {question!r} is also on line {lines[question]}; ids must be unique")
        lines[question] = number
        if not metrics:
            raise EndxError(f"{where}: no metrics; evaluate the run again")
        groups += [json_files.text_at(row, GROUP, where)] if GROUP in row else []
        rows.append([json_files.number(row.get(name), f"{where}: {json_files.shown(name)}") for name in metrics])
    all_groups = tuple(groups) if len(groups) == len(rows) else ()
    qrels = file.parent / QRELS
    answers = _answers(read_qrels(qrels), encoded(qrels, "question", lines)) if qrels.is_file() else ()
    values = np.asarray(rows, np.float64)
    return SystemResults(name, tuple(lines), metrics, values, candidates, groups=all_groups, answers=answers)


def _answers(right: Mapping[str, Collection[str]], ids: Collection[str]) -> tuple[str, ...]:
    """Returns the right answer of each question, of several the one with most questions; none if one has none."""
    count = Counter(answer for answers in right.values() for answer in answers)
    return tuple(max(right[name], key=count.__getitem__) for name in ids) if all(name in right for name in ids) else ()


def _sizes(file: pathlib.Path) -> dict[tuple[str, str], int]:
    """Returns the number of candidates by (pool, system), in the order of the results."""
    sizes = {}
    for entry in read_results(file) if file.is_file() else ():
        if entry["direction"] == "question_to_answer":
            where = f"{file}: 'candidates' of {entry['system']!r}"
            sizes[entry["pool"], entry["system"]] = json_files.as_whole(entry.get("candidates"), where)
    return sizes
