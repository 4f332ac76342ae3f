"""Files of rankings: TREC runs and judgements, and per-question metrics as JSON lines.

White space separates the columns of TREC files, so white space in an id is percent-encoded there.
"""

import contextlib
import json
import math
import pathlib
import re
import urllib.parse
from collections.abc import Container, Iterable, Mapping, Sequence

import numpy as np

from endx_jax import metrics
from endx_jax.data.batches.ragged import pad_rows
from endx_jax.data.formats.beir import HEADER, judged_rows
from endx_jax.data.formats.text_files import first_text_line, lines
from endx_jax.errors import EndxError
from endx_jax.files import replacing
from endx_jax.ranking.evaluate import MEASURES, NDCG, Evaluation

QRELS, RUN = "qrels.trec", ".run.trec"
NOT_LISTED = 2.0**100  # rank of right candidates that a run does not list: its reciprocal counts as 0


def write_run(path, question_ids, candidate_ids, top_ids, top_scores, tag) -> None:
    """Writes a TREC run: lines `question Q0 candidate rank score tag`, rank from 1.

    Scores have 9 digits, which represent every float32 exactly, so the file keeps the order and ties of the ranking.
    (trec_eval ignores the rank column and orders ties by candidate id, backwards.) Candidates with the score -inf,
    which are not ranked for a question, are left out.

    Args:
      path: file to write, atomically.
      question_ids: Q unique external ids.
      candidate_ids: N unique external ids, or those that are needed by their indices.
      top_ids: int [Q, depth], indices of candidates, best first.
      top_scores: float32 [Q, depth], descending.
      tag: name of the system (last column).
    """
    question_ids = encoded(path, "question", question_ids)
    candidate_ids = _by_row(path, candidate_ids)
    (tag,) = encoded(path, "tag", [tag])
    with replacing(path) as file:
        for question, ids, scores in zip(question_ids, top_ids.tolist(), top_scores.tolist(), strict=True):
            ranked = ((candidate, score) for candidate, score in zip(ids, scores, strict=True) if score > -math.inf)
            for rank, (candidate, score) in enumerate(ranked, start=1):
                file.write(run_line(question, candidate_ids[candidate], rank, score, tag))


def run_line(question: str, candidate: str, rank: int, score: float, tag: str) -> str:
    """Formats one line of a TREC run; ids and tag have no white space, as `encoded` returns them."""
    return f"{question} Q0 {candidate} {rank} {score:.9g} {tag}\n"


def write_qrels(path, question_ids, candidate_ids, qrels, gains=None) -> None:
    """Writes TREC judgements: lines `question 0 candidate grade`, one for each right candidate.

    Args:
      path: file to write, atomically.
      question_ids: Q unique external ids.
      candidate_ids: N unique external ids.
      qrels: for each question the indices of its right candidates.
      gains: their grades in the order of `qrels`; None if all are 1.
    """
    question_ids = encoded(path, "question", question_ids)
    candidate_ids = _by_row(path, candidate_ids)
    with replacing(path) as file:
        for row, (question, right) in enumerate(zip(question_ids, qrels, strict=True)):
            grades = [1] * len(right) if gains is None else gains[row]
            for candidate, grade in zip(right, grades, strict=True):
                file.write(f"{question} 0 {candidate_ids[candidate]} {grade}\n")


def read_qrels(path: pathlib.Path) -> dict[str, dict[str, float]]:
    """Reads judgements: the right candidates of each question, those with a grade above 0, and their grades.

    The file has TREC's four columns, or a header and BEIR's three, whose ids are encoded as in a run. It judges each
    candidate once for a question, and one or more as right.
    """
    table = _read(path, ("question", "0", "candidate", "grade"), 3).items()
    right = {question: {name: grade for name, grade in row.items() if grade > 0} for question, row in table}
    if not any(right.values()):
        raise EndxError(f"{path}: no grade is above 0, so no candidate is right: give judgements of right candidates")
    return {question: grades for question, grades in right.items() if grades}


def read_run(path: pathlib.Path, right: Mapping[str, Container[str]]) -> dict[str, dict[str, float]]:
    """Reads a TREC run of any tool: the candidates of each question and their scores, best first.

    As in trec_eval, scores order the candidates, not the rank column. As in `endx evaluate`, a candidate with the id of
    a question is left out for it, unless it is one of its `right` ones.
    """
    run = _read(path, ("question", "Q0", "candidate", "rank", "score", "tag"), 4)
    for question, scores in run.items():
        if question not in right.get(question, ()):
            scores.pop(question, None)
    return {question: dict(sorted(scores.items(), key=lambda item: -item[1])) for question, scores in run.items()}


def _read(path: pathlib.Path, names: Sequence[str], place: int) -> dict[str, dict[str, float]]:
    """Returns the number in column `place` by question and candidate."""
    table: dict[str, dict[str, float]] = {}
    of_beir = first_text_line(str(path)).split() == HEADER.split()
    rows = ((f"{path}, line {number}", line.split()) for number, line in lines(str(path)))
    for where, columns in judged_rows(str(path)) if of_beir else rows:
        if of_beir:
            columns = [*encoded(path, names[0], columns[:1]), "0", *encoded(path, names[2], columns[1:2]), columns[2]]
        if len(columns) != len(names):
            raise EndxError(f"{where}: {len(columns)} columns in place of {len(names)}: {' '.join(names)}")
        of_question = table.setdefault(columns[0], {})
        with contextlib.suppress(ValueError):
            value = float(columns[place])
            if math.isfinite(value) and columns[2] not in of_question:
                of_question[columns[2]] = value
                continue
        what = f"{columns[2]!r} must occur once for {columns[0]!r} and have a finite {names[place]}"
        raise EndxError(f"{where}: {what}; it has {columns[place]!r}")
    return table


def measure_run(run: Mapping, right: Mapping, depth: int) -> tuple[tuple[str, ...], np.ndarray]:
    """Returns the names of M metrics and their values [Q, M] on the questions of `right`.

    Candidates below the first `depth` count as not found, with 0 in `mrr` and `map`, as in trec_eval. Metrics that
    count a larger number of candidates are left out.
    """
    ranks, levels = [], []
    for question, grades in right.items():
        listed = dict([*run.get(question, {}).items()][:depth])
        places = np.unique([*listed.values()], return_inverse=True)[1].tolist()  # small enough for float32
        level = dict(zip(listed, places, strict=True))
        levels.append([level.get(candidate, math.nan) for candidate in grades])
        right_levels = -np.sort(-np.array(levels[-1]))  # best first; NaN last
        wrong = np.sort([place for candidate, place in level.items() if candidate not in grades])
        above = len(wrong) - sum(np.searchsorted(wrong, right_levels, side) for side in ("left", "right")) / 2
        ranks.append(np.where(np.isnan(right_levels), NOT_LISTED, 1 + np.arange(len(grades)) + above).tolist())
    padded = pad_rows(ranks, np.inf, np.float32)
    judged = pad_rows([[*grades.values()] for grades in right.values()], 0, np.float32)
    values = {name: metric(padded) for name, metric in MEASURES.items()}
    gains = metrics.ranked_gains(pad_rows(levels, math.nan, np.float32), judged)
    values[NDCG] = MEASURES[NDCG](padded, gains=gains, judged=judged)
    needed = {name: 50 if name == "avg_recall" else int(name.partition("@")[2] or 0) for name in values}
    names = tuple(name for name in values if needed[name] <= depth)
    return names, np.stack([values[name] for name in names], axis=1)


def write_system(
    folder: pathlib.Path,
    system: str,
    question_ids,
    candidate_ids,
    evaluation: Evaluation,
    groups: Sequence[str] | None = None,
) -> None:
    """Writes the run `SYSTEM.run.trec`, and `SYSTEM.per_question.jsonl`: `id`, `ranks` and metrics of each question.

    The ids are those of `write_run`. The `group` of a question is its subject, such as its article, if it is known.
    """
    write_run(folder / f"{system}{RUN}", question_ids, candidate_ids, evaluation.top_ids, evaluation.top_scores, system)
    with replacing(folder / f"{system}.per_question.jsonl") as file:
        for n, (identity, row) in enumerate(zip(question_ids, evaluation.per_question(), strict=True)):
            group = {} if groups is None else {"group": groups[n]}
            file.write(json.dumps({"id": identity, **group, **row}, ensure_ascii=False) + "\n")


def _by_row(path, ids: Sequence[str] | Mapping[int, str]) -> dict[int, str]:
    ids = ids if isinstance(ids, Mapping) else dict(enumerate(ids))
    return dict(zip(ids, encoded(path, "candidate", ids.values()), strict=True))


def encoded(path, kind: str, ids: Iterable[str]) -> list[str]:
    """Returns ids of this `kind` with their white space and control characters percent-encoded, each unique."""
    hidden = re.compile(r"[\s\x00-\x1f\x7f-\x9f]")
    columns = [hidden.sub(lambda match: urllib.parse.quote(match[0]), identity) for identity in ids]
    seen = set()
    for identity in columns:
        if not identity:
            raise EndxError(f"{path}: a {kind} is empty; TREC files need a value in each column")
        if identity in seen:
            raise EndxError(f"{path}: {kind} {identity!r} occurs twice; ids must be unique")
        seen.add(identity)
    return columns
