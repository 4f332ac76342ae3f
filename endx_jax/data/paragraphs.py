"""What reading-comprehension data is read as, whatever its format, and its paragraphs as what is retrieved."""

import dataclasses
from collections.abc import Iterable

from endx_jax.data.records import RetrievalSet
from endx_jax.errors import EndxError


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """An annotator's answer: its text, and the character of the paragraph's context at which it starts."""

    text: str
    start: int


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """A question about a paragraph, as the file has it; no answers where the paragraph has none."""

    id: str
    text: str
    answers: tuple[Answer, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Paragraph:
    """A context as the file has it, white space at its ends included, so that the answers' starts hold.

    Attributes:
      article: the title of what the paragraph stands in, or where that has none a name that tells it from others.
      context: the text.
      questions: asked of it, perhaps none.
      sentences: spans `(start, end)` of the context, where the data come with their own; None where ReQA's rules cut.
    """

    article: str
    context: str
    questions: tuple[Question, ...]
    sentences: tuple[tuple[int, int], ...] | None = None


def merged_set(paragraphs: Iterable[Paragraph], source: str) -> RetrievalSet:
    """Whole paragraphs as candidates: right for a question are all paragraphs in which the string is asked.

    Equal questions are merged, and so are equal paragraphs. A question that no paragraph answers is left out; its
    paragraph stays in the pool. A question's id and its group, the article, are those of its first place, a
    candidate's id is `p0`, `p1`, ... in order.

    Args:
      paragraphs: in the order of their source.
      source: its name.

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
    """Whole paragraphs as candidates, and each question as one of its own, asked of its own paragraph alone.

    So RR counts SQuAD (Table 1). Equal paragraphs, which no retrieval can tell apart, are one candidate: 5 fewer in
    SQuAD's train file. Ids, groups, arguments and errors are as in `merged_set`.
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
