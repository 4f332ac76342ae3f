"""Reader of the questions of `endx search`, and formats of its answers: text, JSON lines and TREC runs."""

import json
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from endx_jax import json_files
from endx_jax.data.readers import text_files
from endx_jax.errors import EndxError
from endx_jax.retrieval import trec
from endx_jax.retrieval.text_search import Answer


class Question(NamedTuple):
    """Question with its id in the results."""

    id: str
    text: str


def read_questions(path: str) -> list[Question]:
    """Returns all questions of a file.

    Each line is a question, with its line number as id. If the first line that is not empty begins with `{`, each line
    is a JSON object with `text` or `question`, and optionally `_id` or `id`. Empty lines are ignored.

    Args:
      path: a file, which may end in `.gz`, or `-` for standard input.

    Raises:
      EndxError: the file can't be read or has no questions, a question is not valid, or two have the same id.
    """
    lines = text_files.stream_lines(sys.stdin.buffer, "standard input") if path == "-" else text_files.lines(path)
    name = "standard input" if path == "-" else path
    questions = [*_questions(lines, name)]
    if not questions:
        raise EndxError(f"{name} contains no questions: give one per line")
    return questions


def _questions(lines: Iterable[tuple[int, str]], name: str) -> Iterator[Question]:
    objects = None
    seen: dict[str, int] = {}
    for number, line in lines:
        line = line.strip()
        if not line:
            continue
        if objects is None:
            objects = line.startswith("{")
        where = f"{name}, line {number}"
        question = _of_object(line, number, where) if objects else Question(str(number), json_files.text(line, where))
        if question.id in seen:
            raise EndxError(f"{where}: line {seen[question.id]} has the same id {question.id[:100]!r}")
        seen[question.id] = number
        yield question


def _of_object(line: str, number: int, where: str) -> Question:
    fields = json_files.parse(line, where, dict)
    key = next((key for key in ("text", "question") if key in fields), "")
    if not key:
        raise EndxError(f"{where} needs a question in 'text' or 'question'")
    text = json_files.text(fields[key], f"{where}: {key!r}")
    identifier = json_files.identifier(fields.get("_id", fields.get("id", number)), f"{where}: the id")
    return Question(json_files.text(identifier, f"{where}: the id"), text)


WIDEST = 100
# Lines of a text that are shown; JSONL has the whole text.
LINES = 3
# Known questions that are shown above the text.
QUESTIONS = 3
# Metadata shown after the id, in this order.
SHOWN = ("title", "source", "url")


def to_text(answers: Sequence[Answer]) -> str:
    """Formats rank, score, id and beginning of each answer, up to `WIDEST` columns wide."""
    if not answers:
        return "  nothing found\n"
    width = min(WIDEST, shutil.get_terminal_size().columns)
    ranks = len(str(answers[-1].rank))
    return "".join(_entry(answer, ranks, width) for answer in answers)


def _entry(answer: Answer, ranks: int, width: int) -> str:
    document = answer.document
    about = dict.fromkeys([document.id, *(str(document.metadata[key]) for key in SHOWN if key in document.metadata)])
    indent = " " * (ranks + 3)
    # The texts of docstrings begin with the documented name, which is their id.
    text = " ".join(document.text.removeprefix(f"{document.id}: ").split()) or "(empty)"
    body = textwrap.fill(
        text, width, initial_indent=indent, subsequent_indent=indent, max_lines=LINES, placeholder=" ..."
    )
    known = document.questions[:QUESTIONS]
    more = f" (and {len(document.questions) - QUESTIONS:,} more)" if len(document.questions) > QUESTIONS else ""
    asked = textwrap.shorten(f"Q: {' / '.join(known)}", width - len(indent) - len(more), placeholder=" ...") + more
    questions = f"{indent}{asked}\n" * bool(known)
    return f"{answer.rank:>{ranks + 1}}  {answer.score:.4f}  {' · '.join(about)}\n{questions}{body}\n"


def to_jsonl(question: Question, answers: Sequence[Answer]) -> str:
    """Formats a question and its answers as one line of JSON."""
    listed = [
        {"rank": answer.rank, "id": answer.document.id, "score": answer.score, "text": answer.document.text}
        | ({"metadata": dict(answer.document.metadata)} if answer.document.metadata else {})
        | ({"questions": list(answer.document.questions)} if answer.document.questions else {})
        for answer in answers
    ]
    fields = {"id": question.id, "question": question.text, "answers": listed}
    return json.dumps(fields, ensure_ascii=False) + "\n"


def to_trec(question: Question, answers: Sequence[Answer], tag: str) -> str:
    """Formats each answer as a line of a TREC run.

    Raises:
      EndxError: an id is empty or repeated.
    """
    (name,) = trec.encoded("the run", "question", [question.id])
    ids = trec.encoded("the run", "document", [answer.document.id for answer in answers])
    lines = zip(ids, answers, strict=True)
    return "".join(trec.run_line(name, document, one.rank, one.score, tag) for document, one in lines)


def formatted(form: str, question: Question, answers: Sequence[Answer], *, tag: str, naming: bool) -> str:
    """Formats a question and its answers.

    Args:
      form: `text`, `jsonl` or `trec`.
      question: the question.
      answers: its answers.
      tag: tag of the TREC run.
      naming: `text` begins with the question.
    """
    if form == "trec":
        return to_trec(question, answers, tag)
    if form == "jsonl":
        return to_jsonl(question, answers)
    return f"{question.text}\n{to_text(answers)}\n" if naming else to_text(answers)
