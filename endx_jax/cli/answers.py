"""Answers as people and programs read them."""

import json
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence

from endx_jax.cli.questions import Question
from endx_jax.retrieval import trec
from endx_jax.retrieval.text_search import Answer

WIDEST = 100
# Lines of a text that are shown; JSONL has all of it.
LINES = 3
# Metadata shown beside the id, in this order.
SHOWN = ("title", "source", "url")


def to_text(answers: Sequence[Answer]) -> str:
    """Rank, score, id and the beginning of the text of each, as wide as the terminal and not wider than `WIDEST`."""
    if not answers:
        return "  nothing found\n"
    width = min(WIDEST, shutil.get_terminal_size().columns)
    ranks = len(str(answers[-1].rank))
    return "".join(_entry(answer, ranks, width) for answer in answers)


def _entry(answer: Answer, ranks: int, width: int) -> str:
    document = answer.document
    about = [document.id, *(str(document.metadata[key]) for key in SHOWN if key in document.metadata)]
    indent = " " * (ranks + 3)
    # Docstrings begin with the name of what they document, which is their id.
    text = " ".join(document.text.removeprefix(f"{document.id}: ").split()) or "(empty)"
    body = textwrap.fill(
        text, width, initial_indent=indent, subsequent_indent=indent, max_lines=LINES, placeholder=" ..."
    )
    return f"{answer.rank:>{ranks + 1}}  {answer.score:.4f}  {' · '.join(about)}\n{body}\n"


def to_jsonl(question: Question, answers: Sequence[Answer]) -> str:
    """One line with the question and its answers."""
    found = [
        {"rank": answer.rank, "id": answer.document.id, "score": answer.score, "text": answer.document.text}
        | ({"metadata": dict(answer.document.metadata)} if answer.document.metadata else {})
        for answer in answers
    ]
    fields = {"id": question.id, "question": question.text, "answers": found}
    return json.dumps(fields, ensure_ascii=False) + "\n"


def to_trec(question: Question, answers: Sequence[Answer], tag: str) -> str:
    """A line of a TREC run for each answer.

    Raises:
      EndxError: an id holds white space.
    """
    trec.check_ids("the run", "question", [question.id])
    trec.check_ids("the run", "document", [answer.document.id for answer in answers])
    return "".join(trec.run_line(question.id, a.document.id, a.rank, a.score, tag) for a in answers)


def formatted(
    form: str, asked: Iterable[tuple[Question, Sequence[Answer]]], *, tag: str, naming: bool
) -> Iterator[str]:
    """Questions and their answers in a form: `text`, `jsonl` or `trec`.

    Args:
      form: which.
      asked: questions and answers.
      tag: of the TREC run.
      naming: whether text says which question is answered.
    """
    for question, answers in asked:
        if form == "trec":
            yield to_trec(question, answers, tag)
        elif form == "jsonl":
            yield to_jsonl(question, answers)
        else:
            yield (f"{question.text}\n" if naming else "") + to_text(answers) + ("\n" if naming else "")
