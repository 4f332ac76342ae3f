"""MRQA's JSONL (Fisch et al. 2019): a header, and then a context with its questions a line.

HotpotQA, NewsQA, TriviaQA, SearchQA, Natural Questions and SQuAD come so, and others. Contexts are cut to 800 tokens,
and hold marks: `[DOC]`, `[PAR]`, `[TLE]` and `[SEP]`, and Natural Questions' tags.
"""

import dataclasses
from collections.abc import Iterator

from endx_jax.data.paragraphs import Answer, Paragraph, Question
from endx_jax.data.readers import files
from endx_jax.data.readers.marks import Unmarked, unmark
from endx_jax.data.readers.question_ids import QuestionIds
from endx_jax.errors import EndxError


@dataclasses.dataclass(frozen=True, slots=True)
class Context:
    """A line of the file.

    Attributes:
      where: the file and the line.
      length: characters of the context as the file has it, with its marks.
      unmarked: the context without them.
      questions: as `contexts` says; where their answers start is counted without the marks.
    """

    where: str
    length: int
    unmarked: Unmarked
    questions: tuple[Question, ...]

    @property
    def article(self) -> str:
        """A name that tells the context from others, as MRQA gives none: the id of its first question."""
        return f"context of {self.questions[0].id}"


def paragraphs(path: str) -> Iterator[Paragraph]:
    """Yields the contexts of an MRQA file, without marks, with the first span of each question's first answer.

    MRQA found most spans by looking for the answer's string, and says that the first of the first is an acceptable
    choice; with it HotpotQA and NewsQA have the counts of ENDX (Wang et al. 2021, Table 1). A sentence ends where a
    mark stood; between marks ReQA's rules cut.

    Raises:
      EndxError: the file is broken, named by line.
    """
    for context in contexts(path):
        marked = len(context.unmarked.text) < context.length
        sentences = context.unmarked.sentences() if marked else None
        yield Paragraph(context.article, context.unmarked.text, context.questions, sentences)


def contexts(path: str, *, every_span: bool = False) -> Iterator[Context]:
    """Yields the contexts of an MRQA file, one at a time; those without text or without questions are passed over.

    Args:
      path: the file, `.jsonl` or `.jsonl.gz`.
      every_span: whether a question's answers are all spans of all its detected answers, in the order of the context,
        or the first span of the first. A question without a span has no answer.
    """
    ids = QuestionIds()
    for number, row in files.objects(path):
        where = f"{path}, line {number}"
        if "header" in row and "context" not in row:
            continue
        text = files.value(row, "context", where)
        files.text(text, f"{where}: 'context'", may_be_empty=True)
        unmarked = unmark(str(text))
        listed = files.listed(files.value(row, "qas", where), f"{where}: 'qas'")
        questions = tuple(
            _question(question, f"{where}: qas[{n}]", unmarked, len(str(text)), every_span)
            for n, question in enumerate(listed)
        )
        for question in questions:
            ids.add(question.id, question.text, where)
        if questions and unmarked.text:
            yield Context(where, len(str(text)), unmarked, questions)


def _question(row: object, where: str, context: Unmarked, length: int, every_span: bool) -> Question:
    name = files.text(files.value(row, "qid", where), f"{where}.qid")
    text = files.value(row, "question", where)
    files.text(text, f"{where}.question")
    found = files.listed(files.value(row, "detected_answers", where), f"{where}.detected_answers")
    spans = [
        (_start(span, f"{place}.char_spans[{k}]", length), str(files.value(answer, "text", place)))
        for n, answer in enumerate(found)
        for place in [f"{where}.detected_answers[{n}]"]
        for k, span in enumerate(files.listed(files.value(answer, "char_spans", place), f"{place}.char_spans"))
    ]
    chosen = sorted(set(spans)) if every_span else spans[:1]
    return Question(name, str(text), tuple(Answer(answer, context.place(start)) for start, answer in chosen))


def _start(span: object, where: str, length: int) -> int:
    """The first character of a span, both ends of which belong to it."""
    match span:
        case [int(start), int(end)] if 0 <= start <= end < length:
            return start
    raise EndxError(f"{where} is {span!r}; it must be a first and a last of the context's {length} characters")
