"""Reader of the questions of `endx search --questions`."""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping

from endx_jax import json_files
from endx_jax.cli.answers import NamedQuestion
from endx_jax.data.formats import open_data, row_files, tables, text_files
from endx_jax.data.formats.columns import NAMES, QUESTION_ID, SEARCHED, find
from endx_jax.errors import EndxError


def read_questions(path: str) -> list[NamedQuestion]:
    """Returns all questions of a file, which may end in `.gz`; `-` is standard input.

    - `.csv`, `.json`, Arrow tables, and `.tsv` with a header: a row for each question, in one of the columns
      `NAMES[SEARCHED]`; its id may be in one of `NAMES[QUESTION_ID]`;
    - other files whose first line begins with `{`: lines of JSON objects with the same keys;
    - files whose first line is an id, a tab and a question, as of MS MARCO and Anserini: such lines;
    - other files: lines of questions.

    The id of a question without one is its line number. Empty lines are ignored.

    Raises:
      EndxError: the file can't be read or has no questions, a question is not valid, or two have the same id.
    """
    name, found = ("standard input", None) if path == "-" else (path, open_data(path, otherwise=tables.LINES))
    if found and tables.names_columns(found.place, SEARCHED, QUESTION_ID):
        rows = row_files.read_rows(found.path)
    else:
        lines = text_files.lines(found.path) if found else text_files.stream_lines(sys.stdin.buffer, name)
        rows = _rows(lines, name)
    questions: dict[str, tuple[str, NamedQuestion]] = {}
    for number, where, row in rows:
        question = _question(row, number, where)
        if question.id in questions:
            raise EndxError(f"{where}: {questions[question.id][0]} has the same id {question.id[:100]!r}")
        questions[question.id] = where, question
    if not questions:
        raise EndxError(f"{name} contains no questions: give one per line")
    return [question for _, question in questions.values()]


def _rows(lines: Iterable[tuple[int, str]], name: str) -> Iterator[tuple[int, str, dict]]:
    """Yields the rows of lines that are no table; the first one decides what all are."""
    objects = ids = None
    for number, line in lines:
        if not (line := line.strip()):
            continue
        if objects is None:
            objects, ids = line.startswith("{"), re.fullmatch(r"\S+\t[^\t]+", line)
        where = f"{name}, line {number}"
        if not objects and not ids and ("\t" in line or re.match(r"<(\?xml|top|quer)", line)):
            raise EndxError(f"{where} is not a question: write one per line, or an id, a tab and a question")
        texts = line.split("\t") if ids else [line]
        if ids and len(texts) != 2:
            raise EndxError(f"{where}: {len(texts)} tab-separated columns where the first line has two")
        row = {"question": texts[-1]} | ({"id": texts[0]} if ids else {})
        yield number, where, json_files.parse(line, where, dict) if objects else row


def _question(row: Mapping, number: int, where: str) -> NamedQuestion:
    """Returns the question of a row; without an id, its number is the id."""
    key, name = (next(iter(find(side, row)), "") for side in (SEARCHED, QUESTION_ID))
    if not key:
        names = " or ".join(repr(name) for (name,) in NAMES[SEARCHED])
        raise EndxError(f"{where} needs a question in {names}, not in {json_files.format_names(row)}")
    text = json_files.as_text(row[key], f"{where}: {key!r}")
    identifier = json_files.identifier(row[name] if name else number, f"{where}: the id")
    return NamedQuestion(json_files.as_text(identifier, f"{where}: the id"), text)
