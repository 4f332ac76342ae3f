"""Questions with strings that answer them, and no passages: NQ-open, and DPR's question files."""

import dataclasses
import re
from collections.abc import Iterator

from endx_jax.data.readers import columns, files
from endx_jax.errors import EndxError


@dataclasses.dataclass(frozen=True)
class Answered:
    """A question and the strings that answer it.

    Attributes:
      id: `q0`, `q1`, ... by its place.
      text: the question.
      answers: any of which answers it.
    """

    id: str
    text: str
    answers: tuple[str, ...]


def read_answered(path: str) -> list[Answered]:
    """Reads questions with answer strings.

    Known are NQ-open's `.jsonl` (`question`, and a list in `answer` or `answers`) and DPR's question files, `.csv` or
    `.tsv` by name: a question, a tab and a list of strings in Python's notation. Both also with `.gz`.

    Raises:
      EndxError: the file is broken, named by line, or a question has no answer.
    """
    ending = files.ending(path, (".jsonl", ".csv", ".tsv"))
    rows = _objects(path) if ending == ".jsonl" else _lines(path)
    found = []
    for number, (where, question, answers) in enumerate(rows):
        if not answers:
            raise EndxError(f"{where}: the question has no answer")
        found.append(Answered(f"q{number}", question, tuple(answers)))
    return found


Row = tuple[str, str, list[str]]


def _objects(path: str) -> Iterator[Row]:
    for number, row in files.objects(path):
        where = f"{path}, line {number}"
        question = files.text(files.value(row, "question", where), f"{where}: 'question'")
        key = "answers" if "answers" in row else "answer"
        answers = files.listed(files.value(row, key, where), f"{where}: {key!r}")
        yield where, question, [files.text(answer, f"{where}: {key!r}, item {n}") for n, answer in enumerate(answers)]


def _lines(path: str) -> Iterator[Row]:
    for number, row in columns.rows(path, "\t", strict=False):  # as DPR reads them
        where = f"{path}, line {number}"
        if len(row) != 2:
            raise EndxError(f"{where}: {len(row)} tab-separated columns where each line has a question and its answers")
        yield where, files.text(row[0], f"{where}: the question"), [*strings(row[1], where)]


# A string in Python's notation, and what may follow a backslash in it.
_LITERAL = re.compile(r"""\s*(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)")\s*(,|$)""", re.DOTALL)
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}


def strings(text: str, where: str) -> list[str]:
    """The strings of a list in Python's notation, such as `['one', "two's"]`; nothing of it is ever run.

    Raises:
      EndxError: it is something else.
    """
    inner = text.strip()
    if not (inner.startswith("[") and inner.endswith("]")):
        raise EndxError(f"{where}: the answers must be a list of strings, such as ['one', 'two']")
    inner, at, found = inner[1:-1].strip(), 0, []
    while at < len(inner):
        literal = _LITERAL.match(inner, at)
        if literal is None:
            raise EndxError(f"{where}: the answers are no list of quoted strings, from {inner[at : at + 20]!r} on")
        found.append(_ESCAPE.sub(lambda part: _unescaped(part[1], where), literal[1] or literal[2] or ""))
        at = literal.end()
    return found


def _unescaped(escape: str, where: str) -> str:
    if len(escape) > 1:
        return chr(int(escape[1:], 16))
    if escape not in _ESCAPED:
        raise EndxError(f"{where}: unknown escape \\{escape} in an answer")
    return _ESCAPED[escape]
