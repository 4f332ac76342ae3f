"""Writing of mined hard negatives as a BEIR folder, with a teacher's scores and a description of the mining."""

import csv
import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from endx_jax.data.formats.beir import HEADER, NEGATIVES_HEADER
from endx_jax.data.sets.records import RetrievalSet
from endx_jax.errors import EndxError
from endx_jax.files import replace_folder, replacing, staging_folder

# Description of the mining; folders without this file are not overwritten.
REPORT = "mining.json"


class Negative(NamedTuple):
    """Hard negative of a question.

    Attributes:
      row: row of the candidate.
      score: score of the candidate in the mining system.
      rank: rank of the candidate in that system, from 1, right candidates included.
    """

    row: int
    score: float
    rank: int


def write_mined(
    folder: pathlib.Path,
    records: RetrievalSet,
    negatives: Sequence[Sequence[Negative]],
    *,
    split: str = "train",
    about: Mapping[str, Any],
    scores: Sequence[Mapping[int, float]] | None = None,
) -> None:
    """Writes questions, judgements and hard negatives as a BEIR folder, which atomically replaces an older one.

    - `corpus.jsonl`: candidates that are right for a question or a hard negative of one;
    - `queries.jsonl`: questions, with their group, if any, as `metadata.group`;
    - `qrels/SPLIT.tsv`, as in BEIR, and `negatives/SPLIT.tsv`, which also has the rank;
    - `scores/SPLIT.tsv`, in the format of qrels, if `scores` are given;
    - `mining.json`: `about`.

    Args:
      folder: output folder.
      records: retrieval set, whose `hard_negatives` are ignored.
      negatives: hard negatives of each question.
      split: name of the judgements file.
      about: description of the mining.
      scores: a teacher's scores of each question's right candidates and negatives by row; None to write none.

    Raises:
      EndxError: an id contains a tab or a line break.
    """
    rows = sorted(
        {row for right in records.qrels for row in right} | {hard.row for listed in negatives for hard in listed}
    )
    for name in (*records.question_ids, *(records.candidate_ids[row] for row in rows)):
        if name != name.strip() or len(name.splitlines()) != 1 or "\t" in name:
            raise EndxError(
                f"the id {name!r} contains a tab, a line break or white space at its ends: give the data other ids"
            )
    with staging_folder(folder) as fresh:
        documents = ({"_id": records.candidate_ids[n], "title": "", "text": records.candidates[n]} for n in rows)
        _write_lines(fresh / "corpus.jsonl", documents)
        _write_lines(fresh / "queries.jsonl", (_query(records, row) for row in range(len(records.questions))))
        grades = records.grades or [dict.fromkeys(right, 1) for right in records.qrels]
        judged = ((q, c, grades[q][c]) for q, right in enumerate(records.qrels) for c in right)
        _write_table(fresh / "qrels" / f"{split}.tsv", HEADER, records, judged)
        mined = ((q, hard.row, f"{hard.score:.6g}", hard.rank) for q, listed in enumerate(negatives) for hard in listed)
        _write_table(fresh / "negatives" / f"{split}.tsv", NEGATIVES_HEADER, records, mined)
        if scores is not None:
            scored = ((q, row, f"{score:.6g}") for q, by_row in enumerate(scores) for row, score in by_row.items())
            _write_table(fresh / "scores" / f"{split}.tsv", HEADER, records, scored)
        (fresh / REPORT).write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        replace_folder(fresh, folder)


def _query(records: RetrievalSet, row: int) -> dict:
    group = {} if records.groups is None else {"metadata": {"group": records.groups[row]}}
    return {"_id": records.question_ids[row], "text": records.questions[row], **group}


def _write_lines(path: pathlib.Path, rows: Iterable[dict]) -> None:
    with replacing(path) as stream:
        stream.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _write_table(path: pathlib.Path, header: str, records: RetrievalSet, rows: Iterable[tuple]) -> None:
    """Writes a line for each (question row, candidate row, further columns...), with ids in place of rows."""
    with replacing(path) as stream:
        table = csv.writer(stream, delimiter="\t", lineterminator="\n")
        table.writerow(header.split("\t"))
        for question, candidate, *more in rows:
            table.writerow((records.question_ids[question], records.candidate_ids[candidate], *more))
