"""Reader of the questions of `endx search`, and formats of its answers: text, JSON lines and TREC runs."""

import json
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from endx_jax import json_files
from endx_jax.data.formats import open_data, row_files, tables, text_files
from endx_jax.data.formats.columns import NAMES, QUESTION_ID, SEARCHED, find
from endx_jax.data.sets.documents import FoundDocument
from endx_jax.errors import EndxError, printable
from endx_jax.ranking import trec


class NamedQuestion(NamedTuple):
    """Question with its id in the results."""

    id: str
    text: str


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
    rows: Iterable[tuple[int, str, NamedQuestion]]
    if found and tables.names_columns(found.place, SEARCHED, QUESTION_ID):
        rows = (
            (number, where, _of_object(row, number, where)) for number, where, row in row_files.read_rows(found.path)
        )
    else:
        lines = text_files.lines(found.path) if found else text_files.stream_lines(sys.stdin.buffer, name)
        rows = _of_lines(lines, name)
    questions: dict[str, tuple[str, NamedQuestion]] = {}
    for _, where, question in rows:
        if question.id in questions:
            raise EndxError(f"{where}: {questions[question.id][0]} has the same id {question.id[:100]!r}")
        questions[question.id] = where, question
    if not questions:
        raise EndxError(f"{name} contains no questions: give one per line")
    return [question for _, question in questions.values()]


def _of_lines(lines: Iterable[tuple[int, str]], name: str) -> Iterator[tuple[int, str, NamedQuestion]]:
    objects = ids = None
    for number, line in lines:
        if not (line := line.strip()):
            continue
        if objects is None:
            objects, ids = line.startswith("{"), re.fullmatch(r"\S+\t[^\t]+", line)
        where = f"{name}, line {number}"
        if objects:
            yield number, where, _of_object(json_files.parse(line, where, dict), number, where)
        elif ids:
            identifier, *texts = line.split("\t")
            if len(texts) != 1:
                raise EndxError(f"{where}: {1 + len(texts)} tab-separated columns where the first line has two")
            yield number, where, NamedQuestion(identifier, json_files.as_text(texts[0], where))
        else:
            yield number, where, NamedQuestion(str(number), json_files.as_text(line, where))


def _of_object(fields: dict, number: int, where: str) -> NamedQuestion:
    key, name = (next(iter(find(side, fields)), "") for side in (SEARCHED, QUESTION_ID))
    if not key:
        names = " or ".join(repr(name) for (name,) in NAMES[SEARCHED])
        raise EndxError(f"{where} needs a question in {names}, not in {json_files.format_names(fields)}")
    text = json_files.as_text(fields[key], f"{where}: {key!r}")
    identifier = json_files.identifier(fields.get(name, number), f"{where}: the id")
    return NamedQuestion(json_files.as_text(identifier, f"{where}: the id"), text)


NARROWEST, WIDEST = 40, 100
# Lines of a text that are shown; JSONL has the whole text.
LINES = 3
# Known questions that are shown above the text.
QUESTIONS = 3
# Metadata shown after the id, in this order.
SHOWN = ("title", "source", "url")


def to_text(answers: Sequence[FoundDocument]) -> str:
    """Formats rank, score, id and beginning of each answer, `NARROWEST` to `WIDEST` columns wide."""
    if not answers:
        return "  nothing found\n"
    width = min(WIDEST, max(NARROWEST, shutil.get_terminal_size().columns))
    ranks = len(str(answers[-1].rank))
    return "".join(_entry(answer, ranks, width) for answer in answers)


def _entry(answer: FoundDocument, ranks: int, width: int) -> str:
    document = answer.document
    number = [f"passage {document.passage}"] if document.passage else []
    fields = [document.id, *number, *(str(document.metadata[key]) for key in SHOWN if key in document.metadata)]
    about = dict.fromkeys(map(_one_line, fields))
    indent = " " * (ranks + 3)
    # The texts of docstrings begin with the documented name, which is their id.
    text = _one_line(document.text.removeprefix(f"{document.id}: ")) or "(empty)"
    body = textwrap.fill(
        text, width, initial_indent=indent, subsequent_indent=indent, max_lines=LINES, placeholder=" ..."
    )
    shown = [*map(_one_line, document.questions[:QUESTIONS])]
    more = f" (and {len(document.questions) - QUESTIONS:,} more)" if len(document.questions) > QUESTIONS else ""
    asked = textwrap.shorten(f"Q: {' / '.join(shown)}", width - len(indent) - len(more), placeholder=" ...") + more
    questions = f"{indent}{asked}\n" if shown else ""
    return f"{answer.rank:>{ranks + 1}}  {answer.score:.4f}  {' · '.join(about)}\n{questions}{body}\n"


def _one_line(text: str) -> str:
    return printable(" ".join(text.split()))


def to_jsonl(question: NamedQuestion, answers: Sequence[FoundDocument]) -> str:
    """Formats a question and its answers as one line of JSON."""
    listed = [
        {"rank": answer.rank, "id": answer.document.id, "score": answer.score, "text": answer.document.text}
        | ({"passage": answer.document.passage} if answer.document.passage else {})
        | ({"metadata": dict(answer.document.metadata)} if answer.document.metadata else {})
        | ({"questions": list(answer.document.questions)} if answer.document.questions else {})
        for answer in answers
    ]
    fields = {"id": question.id, "question": question.text, "answers": listed}
    # json.dumps escapes the other control characters, but not these, which terminals interpret too.
    return re.sub("[\x7f-\x9f]", lambda match: f"\\u{ord(match[0]):04x}", json.dumps(fields, ensure_ascii=False)) + "\n"


def to_trec(question: NamedQuestion, answers: Sequence[FoundDocument], tag: str) -> str:
    """Formats each answer as a line of a TREC run.

    Raises:
      EndxError: an id is empty or repeated.
    """
    (name,) = trec.encoded("the run", "question", [question.id])
    ids = trec.encoded("the run", "document", [answer.document.id for answer in answers])
    lines = zip(ids, answers, strict=True)
    return "".join(trec.run_line(name, document, answer.rank, answer.score, tag) for document, answer in lines)


def formatted(form: str, question: NamedQuestion, answers: Sequence[FoundDocument], *, tag: str, naming: bool) -> str:
    """Formats a question and its answers as `text` (with the question if `naming`), `jsonl` or `trec` with a `tag`."""
    if form == "trec":
        return to_trec(question, answers, tag)
    if form == "jsonl":
        return to_jsonl(question, answers)
    return f"{printable(question.text)}\n{to_text(answers)}\n" if naming else to_text(answers)
