"""SQuAD JSON, versions 1.1 and 2.0: `data[].paragraphs[]` of a `context` and its `qas[]`."""

import json
import os

from endx_jax.data.paragraphs import Answer, Paragraph, Question
from endx_jax.data.readers import files
from endx_jax.data.readers.folders import find
from endx_jax.data.readers.question_ids import QuestionIds
from endx_jax.errors import EndxError

# Of SQuAD 1.1, for training and for development, as its authors name them.
FILES = ("train-v1.1.json", "dev-v1.1.json")


def files_of(folder: str | os.PathLike) -> tuple[str, str]:
    """The training and the development file of SQuAD 1.1 in a folder, under their published names or packed as `.gz`.

    Raises:
      EndxError: there is no such folder, or a file is not in it, named.
    """
    (train, *_), (dev, *_) = find(folder, FILES)
    return train, dev


def paragraphs(path: str) -> list[Paragraph]:
    """The paragraphs of a SQuAD file, `.json` or `.json.gz`, in its order and unmerged.

    An article without a title is called `article N`, counted from 0. A question marked `is_impossible` has no answers.

    Raises:
      EndxError: the file is not JSON (named by line and column) or not SQuAD (named by the path of the key), an answer
        starts outside its context, or one id stands for two questions.
    """
    try:
        tree = json.loads("".join(line for _, line in files.lines(path)))
    except json.JSONDecodeError as error:
        where = f"{path}, line {error.lineno}, column {error.colno}"
        hint = "; a file of one object a line is named .jsonl" if error.msg == "Extra data" else ""
        raise EndxError(f"{where}: broken JSON: {error.msg}{hint}") from None
    found = [
        _paragraph(paragraph, at, _get(article, "title", str, place, default="") or f"article {number}")
        for number, (article, place) in enumerate(_items(tree, "data", f"{path}: the top level", f"{path}: data"))
        for paragraph, at in _items(article, "paragraphs", place, f"{place}.paragraphs")
    ]
    _check_ids(path, found)
    return found


def _paragraph(paragraph: object, at: str, article: str) -> Paragraph:
    context = _get(paragraph, "context", str, at)
    files.text(context, f"{at}.context")
    questions = _items(paragraph, "qas", at, f"{at}.qas")
    return Paragraph(article, context, tuple(_question(question, place, len(context)) for question, place in questions))


def _question(question: object, at: str, context_length: int) -> Question:
    text = _get(question, "question", str, at)
    files.text(text, f"{at}.question")
    name = files.text(_get(question, "id", str, at), f"{at}.id")
    if _get(question, "is_impossible", bool, at, default=False):
        return Question(name, text, ())
    answers = tuple(
        _answer(answer, place, context_length) for answer, place in _items(question, "answers", at, f"{at}.answers")
    )
    if not answers:
        raise EndxError(f"{at}.answers is empty and the question is not marked is_impossible")
    return Question(name, text, answers)


def _answer(answer: object, at: str, context_length: int) -> Answer:
    text = _get(answer, "text", str, at)
    files.text(text, f"{at}.text")
    start = _get(answer, "answer_start", int, at)
    if not 0 <= start < context_length:
        raise EndxError(f"{at}.answer_start is {start}, outside its context of {context_length} characters")
    return Answer(text, start)


def _check_ids(path: str, found: list[Paragraph]) -> None:
    ids = QuestionIds()
    for paragraph in found:
        for question in paragraph.questions:
            ids.add(question.id, question.text, path)


def _get(holder: object, key: str, expected: type, at: str, default: object = None):
    if not isinstance(holder, dict):
        raise EndxError(f"{at} must be an object, not {files.kind(holder)}")
    value = holder.get(key, default)
    if value is None and key not in holder:
        raise EndxError(f"{at} has no {key!r}; a .json file is read as SQuAD")
    # JSON gives exact types, and isinstance would take true for the integer 1.
    if type(value) is not expected:
        raise EndxError(f"{at}.{key} must be {files.kind(expected())}, not {files.kind(value)}")
    return value


def _items(holder: object, key: str, at: str, inside: str) -> list[tuple[object, str]]:
    """The items of the list at `key` of `holder`, which stands at `at`, each with its place."""
    return [(item, f"{inside}[{n}]") for n, item in enumerate(_get(holder, key, list, at))]
