"""SQuAD JSON, versions 1.1 and 2.0: `data[].paragraphs[]` of a `context` and its `qas[]`."""

import dataclasses
import json
import os

from endx_jax.data.readers import files
from endx_jax.data.records import RetrievalSet
from endx_jax.errors import EndxError

# Of SQuAD 1.1, for training and for development, as its authors name them.
FILES = ("train-v1.1.json", "dev-v1.1.json")


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """An annotator's answer: its text, and the character of the paragraph's context at which it starts."""

    text: str
    start: int


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """A question about a paragraph, as the file has it; no answers where it is marked `is_impossible`."""

    id: str
    text: str
    answers: tuple[Answer, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Paragraph:
    """A context as the file has it, white space at its ends included, so that the answers' starts hold.

    `article` is the title of what the paragraph stands in, or `article N`, counted from 0, where that has none.
    """

    article: str
    context: str
    questions: tuple[Question, ...]


def files_of(folder: str | os.PathLike) -> tuple[str, str]:
    """The training and the development file of SQuAD 1.1 in a folder, under their published names or packed as `.gz`.

    Raises:
      EndxError: there is no such folder, or a file is not in it, named.
    """
    folder = os.path.expanduser(folder)
    if not os.path.isdir(folder):
        raise EndxError(f"{folder}: no such folder; give one that holds {' and '.join(FILES)}, or the same as .gz")
    choices = [(os.path.join(folder, name), os.path.join(folder, f"{name}.gz")) for name in FILES]
    found = [next(filter(os.path.isfile, paths), None) for paths in choices]
    if found[0] is None or found[1] is None:
        missing = [name for name, path in zip(FILES, found, strict=True) if path is None]
        raise EndxError(f"{folder} lacks {' and '.join(missing)}, which may also be there as .gz")
    return found[0], found[1]


def read(path: str) -> RetrievalSet:
    """Reads whole paragraphs as candidates: right for a question are all paragraphs in which the string is asked.

    Equal questions are merged, and so are equal paragraphs. A question that no paragraph answers (`is_impossible`) is
    left out; its paragraph stays in the pool. A question's id and its group, the article, are those of its first place
    in the file, a candidate's id is `p0`, `p1`, ... in the order of the file.
    """
    candidates: dict[str, int] = {}
    questions: dict[str, set[int]] = {}
    ids: dict[str, str] = {}
    articles: dict[str, str] = {}
    for paragraph in paragraphs(path):
        candidate = candidates.setdefault(paragraph.context.strip(), len(candidates))
        for question in paragraph.questions:
            if question.answers:
                text = question.text.strip()
                questions.setdefault(text, set()).add(candidate)
                ids.setdefault(text, question.id)
                articles.setdefault(text, paragraph.article)
    if not questions:
        raise EndxError(f"{path}: no answerable questions in the file")
    return RetrievalSet(
        questions=tuple(questions),
        candidates=tuple(candidates),
        qrels=tuple(tuple(sorted(right)) for right in questions.values()),
        question_ids=tuple(ids.values()),
        candidate_ids=tuple(f"p{n}" for n in range(len(candidates))),
        groups=tuple(articles.values()),
    )


def read_unmerged(*paths: str) -> RetrievalSet:
    """Reads whole paragraphs as candidates, and each question as one of its own, asked of its own paragraph alone.

    So RR counts SQuAD (Table 1). Equal paragraphs, which no retrieval can tell apart, are one candidate: 5 fewer in the
    train file. Ids and groups are as in `read`.

    Args:
      *paths: files, one after another; candidates are counted over all.
    """
    candidates: dict[str, int] = {}
    rows: list[tuple[str, str, int, str]] = []
    for paragraph in (paragraph for path in paths for paragraph in paragraphs(path)):
        candidate = candidates.setdefault(paragraph.context.strip(), len(candidates))
        rows += [(q.id, q.text.strip(), candidate, paragraph.article) for q in paragraph.questions if q.answers]
    if not rows:
        raise EndxError(f"{' and '.join(paths)}: no answerable questions in the file")
    ids, questions, right, articles = zip(*rows, strict=True)
    return RetrievalSet(
        questions=questions,
        candidates=tuple(candidates),
        qrels=tuple((candidate,) for candidate in right),
        question_ids=ids,
        candidate_ids=tuple(f"p{n}" for n in range(len(candidates))),
        groups=articles,
    )


def paragraphs(path: str) -> list[Paragraph]:
    """The paragraphs of a SQuAD file, `.json` or `.json.gz`, in its order and unmerged.

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
    texts: dict[str, str] = {}
    for paragraph in found:
        for question in paragraph.questions:
            if texts.setdefault(question.id, question.text) != question.text:
                raise EndxError(
                    f"{path}: id {question.id!r} stands for two questions, {texts[question.id]!r} and {question.text!r}"
                )


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
