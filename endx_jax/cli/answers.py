"""Formats of the answers of `endx search`: text, JSON lines and TREC runs."""

import json
import re
import shutil
import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from endx_jax.data.sets.documents import FoundDocument
from endx_jax.errors import printable


class NamedQuestion(NamedTuple):
    """Question with its id in the results."""

    id: str
    text: str


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
    from endx_jax.ranking import trec  # with formats of data, which other answers do not need

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
