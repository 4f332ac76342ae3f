"""Paragraphs with questions, the common form of reading-comprehension data, and retrieval sets of whole paragraphs."""

import dataclasses
from collections.abc import Iterable

from endx_jax.data.records import RetrievalSet
from endx_jax.errors import EndxError


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """Annotator's answer: its text, and the character of the paragraph's context at which it starts."""

    text: str
    start: int


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """Question about a paragraph, unchanged from the file; `answers` is empty if the paragraph has none."""

    id: str
    text: str
    answers: tuple[Answer, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Paragraph:
    """Paragraph with questions.

    Attributes:
      article: title of its article, or a unique name.
      context: the text, including white space at its ends, since answers give places in it.
      questions: its questions, perhaps none.
      sentences: spans `(start, end)` of the context from the data; None to split by ReQA's rules.
    """

    article: str
    context: str
    questions: tuple[Question, ...]
    sentences: tuple[tuple[int, int], ...] | None = None


class QuestionIds:
    """Question ids of a data set, which must be unique."""

    def __init__(self):
        self._texts: dict[str, str] = {}

    def add(self, name: str, text: str, where: str) -> None:
        """Adds the id of a question; `where` names its place.

        Raises:
          EndxError: the id belongs to another question text.
        """
        before = self._texts.setdefault(name, text)
        if before != text:
            raise EndxError(f"{where}: id {name[:100]!r} stands for two questions, {before[:80]!r} and {text[:80]!r}")


def merged_set(paragraphs: Iterable[Paragraph], source: str) -> RetrievalSet:
    """Returns the retrieval set of whole paragraphs, with equal questions merged.

    Right for a question are all paragraphs that answer it. Equal paragraphs are merged. Questions without an answer are
    left out; their paragraphs stay in the pool. The id and group (article) of a question are those of its first
    occurrence. Candidate ids are `p0`, `p1`, ... in order.

    Args:
      paragraphs: paragraphs in file order.
      source: name of the data, for messages.

    Raises:
      EndxError: no question has an answer.
    """
    candidates: dict[str, int] = {}
    questions: dict[str, set[int]] = {}
    ids: dict[str, str] = {}
    articles: dict[str, str] = {}
    for paragraph in paragraphs:
        candidate = candidates.setdefault(paragraph.context.strip(), len(candidates))
        for question in paragraph.questions:
            if question.answers:
                text = question.text.strip()
                questions.setdefault(text, set()).add(candidate)
                ids.setdefault(text, question.id)
                articles.setdefault(text, paragraph.article)
    if not questions:
        raise EndxError(f"{source}: no answerable questions in the file")
    return RetrievalSet(
        questions=tuple(questions),
        candidates=tuple(candidates),
        qrels=tuple(tuple(sorted(right)) for right in questions.values()),
        question_ids=tuple(ids.values()),
        candidate_ids=tuple(f"p{n}" for n in range(len(candidates))),
        groups=tuple(articles.values()),
    )


def unmerged_set(paragraphs: Iterable[Paragraph], source: str) -> RetrievalSet:
    """Returns the retrieval set of whole paragraphs, with equal questions kept apart and one right paragraph each.

    RR counts SQuAD this way (Table 1), except that equal paragraphs, which no retrieval can tell apart, are merged
    here: 5 in SQuAD's train file. Ids, groups, arguments and errors are as in `merged_set`.
    """
    candidates: dict[str, int] = {}
    rows: list[tuple[str, str, int, str]] = []
    for paragraph in paragraphs:
        candidate = candidates.setdefault(paragraph.context.strip(), len(candidates))
        rows += [(q.id, q.text.strip(), candidate, paragraph.article) for q in paragraph.questions if q.answers]
    if not rows:
        raise EndxError(f"{source}: no answerable questions in the file")
    ids, questions, right, articles = zip(*rows, strict=True)
    return RetrievalSet(
        questions=questions,
        candidates=tuple(candidates),
        qrels=tuple((candidate,) for candidate in right),
        question_ids=ids,
        candidate_ids=tuple(f"p{n}" for n in range(len(candidates))),
        groups=articles,
    )
