"""Readers of SQuAD 1.1 and 2.0, as published files and as tables with one row for each question.

The published files have `data[].paragraphs[].qas[]`. Rows with `context`, `question` and `answers` are the form of
SQuAD and of its counterparts in other languages on the Hugging Face hub.
"""

import os
from collections.abc import Iterator
from typing import Any

from endx_jax import json_files
from endx_jax.data.formats import row_files, text_files
from endx_jax.data.formats.folders import find, table_files
from endx_jax.data.formats.format import Format, Place
from endx_jax.data.formats.text_files import InvalidRows, read_json
from endx_jax.data.sets.examples import UniqueIds
from endx_jax.data.sets.paragraphs import AnswerSpan, Paragraph, Question
from endx_jax.errors import EndxError

# Published names of the training and development files of SQuAD 1.1.
FILES = ("train-v1.1.json", "dev-v1.1.json")
NO_ANSWER = "CANNOTANSWER"  # in QuAC, the answer of a question without one


def files_of(folder: str | os.PathLike) -> tuple[str, str]:
    """Returns the training and development files of SQuAD 1.1 in a folder, plain or as `.gz`.

    Raises:
      EndxError: the folder or one of the files is missing.
    """
    (train, *_), (dev, *_) = find(folder, FILES)
    return train, dev


def squad_paragraphs(path: str, invalid: InvalidRows | None = None, split: str | None = None) -> Iterator[Paragraph]:
    """Yields the paragraphs of SQuAD's files in file order.

    An article without a title gets the title `article N`, counted from 0 over all files. A question marked
    `is_impossible`, or whose answers are all `NO_ANSWER`, has no answers. An id may be an integer.

    Args:
      path: `.json` or `.json.gz` file, or folder or pattern of `folders.table_files`.
      invalid: handler of invalid questions; by default they raise EndxError.
      split: split of a folder.

    Raises:
      EndxError: the file is not JSON (named by line and column) or not SQuAD (named by the path of the key), an answer
        starts outside its context, or two questions have the same id.
    """
    invalid, ids = invalid or InvalidRows(path), UniqueIds("question")
    for number, (at, article) in enumerate(_articles(path, split)):
        title = json_files.text_at(article, "title", at, "", may_be_empty=True, strip=False) or f"article {number}"
        for n, paragraph in enumerate(json_files.list_at(article, "paragraphs", at)):
            place = f"{at}.paragraphs[{n}]"
            context = json_files.text_at(paragraph, "context", place, strip=False)
            questions = []
            for k, item in enumerate(json_files.list_at(paragraph, "qas", place)):
                with invalid.row():
                    question = _question(item, f"{place}.qas[{k}]", len(context))
                    ids.add([(question.text, question.id)], place)
                    questions.append(question)
            yield Paragraph(title, context, tuple(questions))


def _articles(path: str, split: str | None) -> Iterator[tuple[str, object]]:
    """Yields (location, article)."""
    for file in table_files(path, split):
        contents = read_json(file)
        if "data" not in contents:
            keys = json_files.format_names(contents)
            raise EndxError(f"{file} is one object with the keys {keys}, not SQuAD's 'data': {text_files.OBJECTS}")
        articles = json_files.list_at(contents, "data", file)
        yield from ((f"{file}: data[{number}]", article) for number, article in enumerate(articles))


def has_spans(place: Place) -> bool:
    """Returns true for rows of `squad_rows`: the answers of the first one have places in its context."""
    answers = place.row.get("answers")
    first = answers[0] if isinstance(answers, list) and answers else answers
    return place.has_keys({"context", "question"}) and isinstance(first, dict) and "answer_start" in first


def squad_rows(path: str, invalid: InvalidRows | None = None, split: str | None = None) -> Iterator[Paragraph]:
    """Yields the paragraphs of rows with `context`, `question` and `answers`, and optional `id` and `title`.

    `answers` has the lists `text` and `answer_start`, or is a list of objects with both; a question without answers is
    an impossible one. Neighbouring rows with the same title and context are one paragraph. Without a title the article
    is named after the paragraph's first row, counted from 0.

    Args:
      path: file, folder or pattern of `row_files.read_rows`.
      invalid: handler of invalid rows; by default they raise EndxError.
      split: split of a folder.

    Raises:
      EndxError: a row can't be read, an answer starts outside its context, or two questions have the same id.
    """
    invalid, ids = invalid or InvalidRows(path), UniqueIds("question")
    article, place = "", ("", "")
    questions: list[Question] = []
    for number, (_, where, row) in enumerate(row_files.read_rows(path, invalid, split=split)):
        with invalid.row():
            context = json_files.text_at(row, "context", where, strip=False)
            title = json_files.text_at(row, "title", where, "", may_be_empty=True, strip=False)
            answers = _answers_of_row(row, where)
            asked = {"id": str(number)} | row | {"answers": answers, "is_impossible": not answers}
            question = _question(asked, where, len(context), ": ")
            ids.add([(question.text, question.id)], where)
            if place != (title, context):
                if questions:
                    yield Paragraph(article, place[1], tuple(questions))
                article, place, questions = title or f"row {number}", (title, context), []
            questions.append(question)
    if questions:
        yield Paragraph(article, place[1], tuple(questions))


def _answers_of_row(row: dict[str, Any], where: str) -> list[Any]:
    answers = json_files.value(row, "answers", where)
    if not isinstance(answers, dict):
        return json_files.list_at(row, "answers", where)
    texts, starts = (json_files.list_at(answers, key, f"{where}: answers") for key in ("text", "answer_start"))
    if len(texts) != len(starts):
        raise EndxError(f"{where}: answers have {len(texts)} 'text' and {len(starts)} 'answer_start'")
    return [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]


def _question(question: object, where: str, context_length: int, joint: str = ".") -> Question:
    text = json_files.text_at(question, "question", where, strip=False)
    name = json_files.as_text(json_files.identifier_at(question, "id", where), f"{where}: 'id'", strip=False)
    impossible = json_files.value(question, "is_impossible", where, False)
    if not isinstance(impossible, bool):
        raise EndxError(f"{where}: 'is_impossible' must be true or false, not {json_files.kind(impossible)}")
    if impossible:
        return Question(name, text, ())
    answers = [
        _answer(answer, f"{where}{joint}answers[{n}]", context_length)
        for n, answer in enumerate(json_files.list_at(question, "answers", where))
    ]
    if not answers:
        raise EndxError(f"{where}: 'answers' is empty and the question is not marked is_impossible")
    return Question(name, text, tuple(answer for answer in answers if answer.text != NO_ANSWER))


def _answer(answer: object, where: str, context_length: int) -> AnswerSpan:
    text = json_files.text_at(answer, "text", where, strip=False)
    start = json_files.value(answer, "answer_start", where)
    if isinstance(start, str) and len(start) < 10 and start.isdecimal():  # as in TQuAD
        start = int(start)
    return AnswerSpan(text, json_files.as_whole(start, f"{where}: 'answer_start'", most=context_length - 1))


def _refuse(place: Place, *_) -> Iterator[Paragraph]:
    raise EndxError(f"{place.path} holds SQuAD's files: name one of them, or set data.pool to train on the folder")


SQUAD = Format(
    "squad",
    lambda place: place.is_object,
    paragraphs=lambda place, options, invalid: squad_paragraphs(place.path, invalid, options.split),
)
SQUAD_ROWS = Format(
    "squad_rows",
    has_spans,
    paragraphs=lambda place, options, invalid: squad_rows(place.path, invalid, options.split),
)
# A folder of both files, which only training reads, as its train and test data.
FOLDER = Format(
    "squad_folder",
    lambda place: place.has(*FILES) and not place.has("corpus.jsonl"),
    paragraphs=_refuse,
    parts=lambda place: files_of(place.path),
)
