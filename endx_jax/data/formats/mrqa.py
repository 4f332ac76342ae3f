"""Reader of MRQA (Fisch et al. 2019) and of MultiReQA (Guo et al. 2020), which adds sentences to MRQA's contexts.

MRQA's files, such as HotpotQA, NewsQA, TriviaQA, SearchQA, Natural Questions and SQuAD, have a header line, and then
one context with its questions per line. Contexts are cut to 800 tokens and contain structure marks: `[DOC]`, `[PAR]`,
`[TLE]` and `[SEP]`, and Natural Questions' tags.

A MultiReQA folder holds MultiReQA's `candidates.json` and MRQA's file of the same data set and split, each plain or as
`.gz`.
"""

import array
import bisect
import dataclasses
import os
import re
import reprlib
from collections.abc import Iterator, Sequence

from endx_jax import json_files
from endx_jax.data.formats import row_files
from endx_jax.data.formats.format import Format
from endx_jax.data.formats.text_files import InvalidRows, uncompressed
from endx_jax.data.sets.examples import UniqueIds
from endx_jax.data.sets.paragraphs import AnswerSpan, Paragraph, Question, split_sentences
from endx_jax.errors import EndxError

# Tags in the texts of Natural Questions, with attributes joined to the name: <P>, </P>, <Td_colspan="2">.
TAG = r'</?[A-Z][A-Za-z0-9]*(?:_\w+="[^">]*")*>'

# Tags, and MRQA's marks before a document, a paragraph and a title and after a title, surrounded by white space.
_MARK = re.compile(rf"(?<!\S)(?:\[(?:DOC|PAR|TLE|SEP)\]|{TAG})(?!\S)\s*")


@dataclasses.dataclass(frozen=True, slots=True)
class Unmarked:
    """Text without its marks.

    Attributes:
      text: the pieces between marks, joined by spaces.
      pieces: span `(start, end)` of each piece in `text`; none is empty.
      starts: start of each piece in the original text.
    """

    text: str
    pieces: tuple[tuple[int, int], ...]
    starts: tuple[int, ...]

    def place(self, place: int) -> int:
        """Maps a place in the original text to `text`; a place in a mark maps to the start of the next piece."""
        piece = bisect.bisect_right(self.starts, place) - 1
        if piece < 0:
            return 0
        start, end = self.pieces[piece]
        now = start + place - self.starts[piece]
        if now <= end:
            return now
        return self.pieces[piece + 1][0] if piece + 1 < len(self.pieces) else len(self.text)

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Maps a span of the original text to `text`, without white space at its ends; the result may be empty."""
        first, last = self.place(start), self.place(end)
        inside = self.text[first:last]
        return first + len(inside) - len(inside.lstrip()), first + len(inside.rstrip())

    def sentences(self) -> tuple[tuple[int, int], ...]:
        """Splits each piece into sentences by ReQA's rules, so that no sentence crosses a mark."""
        return tuple(
            (piece + start, piece + end)
            for piece, stop in self.pieces
            for start, end in split_sentences(self.text[piece:stop])
        )


def unmark(text: str) -> Unmarked:
    """Removes the marks from a text, with the white space around them."""
    bounds = [0]
    for mark in _MARK.finditer(text):
        # White space before marks is not in the pattern, since long runs of it would take quadratic time.
        before = text[bounds[-1] : mark.start()].rstrip()
        bounds += (bounds[-1] + len(before), mark.end())
    bounds.append(len(text))
    parts = [(start, text[start:end]) for start, end in zip(bounds[::2], bounds[1::2], strict=True) if end > start]
    pieces, length = [], 0
    for _, piece in parts:
        pieces.append((length, length + len(piece)))
        length += len(piece) + 1
    return Unmarked(" ".join(piece for _, piece in parts), tuple(pieces), tuple(start for start, _ in parts))


@dataclasses.dataclass(frozen=True, slots=True)
class Context:
    """Line of an MRQA file.

    Attributes:
      where: file and line, for messages.
      length: number of characters of the context with its marks.
      unmarked: context without marks.
      questions: questions about the context; their answers start at positions in `unmarked.text`.
    """

    where: str
    length: int
    unmarked: Unmarked
    questions: tuple[Question, ...]

    @property
    def article(self) -> str:
        """Unique name of the context, from the id of its first question, since MRQA has no titles."""
        return f"context of {self.questions[0].id}"


def mrqa_paragraphs(path: str, invalid: InvalidRows | None = None, split: str | None = None) -> Iterator[Paragraph]:
    """Yields the contexts of MRQA's files without marks, with the first span of each question's first answer.

    MRQA found most spans by string search, and recommends the first span of the first answer, with which HotpotQA and
    NewsQA have the counts of ENDX (Wang et al. 2021, Table 1). Sentences end at marks; between marks, ReQA's rules
    apply.

    Raises:
      EndxError: the file is invalid; the message has the line.
    """
    for context in contexts(path, invalid=invalid, split=split):
        marked = len(context.unmarked.text) < context.length
        sentences = context.unmarked.sentences() if marked else None
        yield Paragraph(context.article, context.unmarked.text, context.questions, sentences)


def contexts(
    path: str, *, every_span: bool = False, invalid: InvalidRows | None = None, split: str | None = None
) -> Iterator[Context]:
    """Yields the contexts of MRQA's files one at a time; skips those without text or questions.

    Args:
      path: file, folder or pattern of `row_files.read_rows`.
      every_span: true to return all spans of a question's detected answers, in the order of the context; false for only
        the first span of the first answer. A question without spans has no answer.
      invalid: handler of invalid contexts; by default they raise EndxError.
      split: split of a folder.
    """
    invalid, ids = invalid or InvalidRows(path), UniqueIds("question")
    for _, where, row in row_files.read_rows(path, invalid, split=split):
        if "header" in row and "context" not in row:
            continue
        questions: list[Question] = []
        with invalid.row():
            text = json_files.text_at(row, "context", where, may_be_empty=True, strip=False)
            unmarked = unmark(text)
            for n, item in enumerate(json_files.list_at(row, "qas", where)):
                question = _question(item, f"{where}: qas[{n}]", unmarked, len(text), every_span)
                ids.add([(question.text, question.id)], where)
                questions.append(question)
        if questions and unmarked.text:
            yield Context(where, len(text), unmarked, tuple(questions))


def _question(row: object, where: str, context: Unmarked, length: int, every_span: bool) -> Question:
    name = json_files.text_at(row, "qid", where)
    text = json_files.text_at(row, "question", where, strip=False)
    spans = []
    for n, answer in enumerate(json_files.list_at(row, "detected_answers", where)):
        place = f"{where}.detected_answers[{n}]"
        for k, span in enumerate(json_files.list_at(answer, "char_spans", place)):
            start = _start(span, f"{place}.char_spans[{k}]", length)
            spans.append((start, str(json_files.value(answer, "text", place))))
    chosen = sorted(set(spans)) if every_span else spans[:1]
    return Question(name, text, tuple(AnswerSpan(answer, context.place(start)) for start, answer in chosen))


def _start(span: object, where: str, length: int) -> int:
    """Returns the start of a span, which includes both ends; raises EndxError if it is outside its context."""
    match span:
        case [int(start), int(end)] if 0 <= start <= end < length:
            return start
    raise EndxError(
        f"{where} is {reprlib.repr(span)}; it must be a first and a last position of the context's {length} characters"
    )


CANDIDATES = ("candidates.json", "candidates.jsonl")
# Maximum end of a sentence, in characters.
_MOST_CHARACTERS = 2**31 - 1
CONTEXTS = (".jsonl", ".jsonl.gz")


def multireqa_paragraphs(folder: str) -> Iterator[Paragraph]:
    """Yields the contexts of a MultiReQA folder with their sentences: see `join_multireqa`."""
    names = sorted(os.listdir(folder))
    candidates = next(name for name in names if uncompressed(name) in CANDIDATES)
    texts = [name for name in names if name != candidates and name.lower().endswith(CONTEXTS)]
    if not texts:
        raise EndxError(f"{folder}: no texts beside {candidates}; put MRQA's .jsonl.gz of the same split there")
    yield from join_multireqa(os.path.join(folder, candidates), [os.path.join(folder, name) for name in texts])


def join_multireqa(candidates: str, paths: Sequence[str]) -> Iterator[Paragraph]:
    """Yields contexts of MRQA's files that have sentences in MultiReQA's, in MRQA's order and without its marks.

    A question's answers are all spans that MRQA detected. Sentences that consist of marks are omitted. Contexts for
    which MultiReQA has no sentences are skipped.

    Raises:
      EndxError: a file is invalid, a sentence is outside its context, or its context is not in the files.
    """
    bounds = _bounds(candidates)
    for path in paths:
        for context in contexts(path, every_span=True):
            entry = next((bounds.pop(question.id) for question in context.questions if question.id in bounds), None)
            if entry is not None:
                sentences = _spans(entry[1], context, path)
                yield Paragraph(context.article, context.unmarked.text, context.questions, sentences)
    if bounds:
        name, (line, _) = next(iter(bounds.items()))
        raise EndxError(
            f"{candidates}, line {line}: question {name[:100]!r} is not in {' or '.join(paths)}; give MRQA's "
            "file of the same data set and split"
        )


def _bounds(path: str) -> dict[str, tuple[int, array.array]]:
    """Returns the first line and the sentences (start, end, start, end, ...) of each context by its first question."""
    bounds: dict[str, tuple[int, array.array]] = {}
    for number, where, row in row_files.read_rows(path):
        name = json_files.text_at(row, "candidate_id", where)
        start, end = (
            json_files.as_whole(json_files.value(row, key, where), f"{where}: {key!r}", most=_MOST_CHARACTERS)
            for key in ("response_start", "response_end")
        )
        if end <= start:
            raise EndxError(f"{where}: the sentence from {start} to {end} is empty; its end must exceed its start")
        # SQuAD_ID1/ID2/_0: the ids of the context's questions, and the number of the sentence.
        questions, slash, _ = name.partition("_")[2].rpartition("/_")
        if not slash or not questions:
            raise EndxError(f"{where}: candidate_id {name[:100]!r} is not of the form NAME_QUESTION/.../_NUMBER")
        bounds.setdefault(questions.partition("/")[0], (number, array.array("q")))[1].extend((start, end))
    return bounds


def _spans(numbers: array.array, context: Context, path: str) -> tuple[tuple[int, int], ...]:
    if max(numbers) > context.length:
        raise EndxError(
            f"{context.where}: a sentence of MultiReQA ends at character {max(numbers)} of this context, which has "
            f"{context.length}: {path} is not the file that MultiReQA was made from"
        )
    spans = (context.unmarked.span(start, end) for start, end in zip(numbers[::2], numbers[1::2], strict=True))
    return tuple(sorted({(start, end) for start, end in spans if start < end}))


MRQA = Format(
    "mrqa",
    lambda place: place.row.keys() == {"header"} or place.has_keys({"context", "qas"}),
    paragraphs=lambda place, options, invalid: mrqa_paragraphs(place.path, invalid, options.split),
)
MULTIREQA = Format(
    "multireqa",
    lambda place: place.has(*CANDIDATES),
    paragraphs=lambda place, options, invalid: multireqa_paragraphs(place.path),
)
