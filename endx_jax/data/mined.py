"""Mined hard negatives on disk: a BEIR folder with one more file, which the trainer reads."""

import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any, NamedTuple

from endx_jax.data.readers.beir import HEADER, NEGATIVES_HEADER
from endx_jax.data.records import RetrievalSet
from endx_jax.errors import EndxError
from endx_jax.files import aside, put_in_place

# What was mined and how; the file tells a folder of this kind from others.
REPORT = "mining.json"


class Negative(NamedTuple):
    """A hard negative of a question.

    Attributes:
      row: of the candidate.
      score: by what found it.
      rank: its place there, from 1; right candidates count.
    """

    row: int
    score: float
    rank: int


def check_replaceable(folder: pathlib.Path) -> None:
    """Raises EndxError when `folder` holds anything but mined negatives."""
    if folder.exists() and not folder.is_dir():
        raise EndxError(f"--output={folder} is a file; name a folder")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / REPORT).is_file():
        raise EndxError(f"--output={folder} holds something else than mined negatives; name a new folder, or empty it")


def write_mined(
    folder: pathlib.Path,
    records: RetrievalSet,
    negatives: Sequence[Sequence[Negative]],
    *,
    split: str = "train",
    about: Mapping[str, Any],
) -> None:
    """Writes questions, judgements and hard negatives; older ones in their place stay whole until these are.

    - `corpus.jsonl`: the candidates that are right for a question or a negative of one;
    - `queries.jsonl`: the questions, with their group, where they have one, as `metadata.group`;
    - `qrels/SPLIT.tsv`, as BEIR has it, and `negatives/SPLIT.tsv`, which has the rank as well;
    - `mining.json`: `about`.

    Args:
      folder: to write.
      records: the set; its own hard negatives are not written.
      negatives: for each question its hard negatives, rows of the set's candidates.
      split: what the judgements are called.
      about: how they were mined.

    Raises:
      EndxError: an id holds a tab or a line break, which the tables cannot.
    """
    needed = {row for own in records.qrels for row in own} | {one.row for own in negatives for one in own}
    rows = sorted(needed)
    for name in (*records.question_ids, *(records.candidate_ids[row] for row in rows)):
        if name != name.strip() or len(name.splitlines()) != 1 or "\t" in name:
            raise EndxError(f"the id {name!r} can't stand in a table of tab-separated columns: give the data other ids")
    with aside(folder) as fresh:
        _write_lines(fresh / "corpus.jsonl", (_document(records, row) for row in rows))
        _write_lines(fresh / "queries.jsonl", (_query(records, row) for row in range(len(records.questions))))
        judged = ((q, c, 1) for q, right in enumerate(records.qrels) for c in right)
        _write_table(fresh / "qrels" / f"{split}.tsv", HEADER, records, judged)
        found = ((q, one.row, f"{one.score:.6g}", one.rank) for q, own in enumerate(negatives) for one in own)
        _write_table(fresh / "negatives" / f"{split}.tsv", NEGATIVES_HEADER, records, found)
        (fresh / REPORT).write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        put_in_place(fresh, folder)


def _document(records: RetrievalSet, row: int) -> dict:
    return {"_id": records.candidate_ids[row], "title": "", "text": records.candidates[row]}


def _query(records: RetrievalSet, row: int) -> dict:
    query: dict[str, Any] = {"_id": records.question_ids[row], "text": records.questions[row]}
    return query if records.groups is None else query | {"metadata": {"group": records.groups[row]}}


def _write_lines(path: pathlib.Path, rows: Iterable[dict]) -> None:
    with _create(path) as stream:
        stream.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _write_table(path: pathlib.Path, header: str, records: RetrievalSet, rows: Iterable[tuple]) -> None:
    """A line for each (question, candidate, further columns...), the first two by their ids."""
    with _create(path) as stream:
        stream.write(header + "\n")
        for question, candidate, *more in rows:
            columns = (records.question_ids[question], records.candidate_ids[candidate], *map(str, more))
            stream.write("\t".join(columns) + "\n")


def _create(path: pathlib.Path) -> IO[str]:
    path.parent.mkdir(exist_ok=True)
    return path.open("w", encoding="utf-8", newline="\n")
