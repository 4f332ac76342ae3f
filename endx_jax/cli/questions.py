"""Questions that are asked in bulk: from a file or standard input."""

import json
import sys
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from endx_jax.errors import EndxError


class Question(NamedTuple):
    """A question and what it is called in the results."""

    id: str
    text: str


def read_questions(path: str) -> list[Question]:
    """Reads questions, all of them.

    Lines are questions, called by their numbers; or, where the first that is not empty begins with `{`, JSON objects
    with `text` or `question`, and perhaps `_id` or `id`. Empty lines are passed over.

    Args:
      path: a file, or `-` for standard input.

    Raises:
      EndxError: the file can't be read, holds no question, or one that is broken, named with its line; or two questions
        have one id.
    """
    name = "standard input" if path == "-" else path
    try:
        if path == "-":
            found = [*_questions(sys.stdin, name)]
        else:
            with open(path, encoding="utf-8") as stream:
                found = [*_questions(stream, name)]
    except (OSError, UnicodeDecodeError) as failure:
        raise EndxError(f"{name} can't be read: {failure}") from None
    if not found:
        raise EndxError(f"{name} holds no question: it needs one a line")
    return found


def _questions(lines: Iterable[str], name: str) -> Iterator[Question]:
    objects = None
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        line = line.strip()
        if not line:
            continue
        if objects is None:
            objects = line.startswith("{")
        where = f"{name}, line {number}"
        question = _of_object(line, number, where) if objects else Question(str(number), line)
        if question.id in seen:
            raise EndxError(f"{where}: the id {question.id!r} is that of line {seen[question.id]} already")
        seen[question.id] = number
        yield question


def _of_object(line: str, number: int, where: str) -> Question:
    try:
        fields = json.loads(line)
        text = fields.get("text", fields.get("question"))
        identifier = fields.get("_id", fields.get("id", number))
    except (json.JSONDecodeError, AttributeError) as failure:
        raise EndxError(f"{where} is no JSON object, as the first line is: {failure}") from None
    if not isinstance(text, str) or not text.strip():
        raise EndxError(f"{where} needs a question in 'text' or 'question'")
    if not isinstance(identifier, str | int):
        raise EndxError(f"{where}: an id is a string or a whole number, not {identifier!r}")
    return Question(str(identifier), text)
