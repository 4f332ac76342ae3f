"""Natural Questions (Kwiatkowski et al. 2019) as published, simplified or full: a page with its annotations a line.

ReQA (Ahmad et al. 2019) takes from the training files the questions of which the annotator marked one short answer in a
long one that is a paragraph, `<P>`, and this reader does so too. Where there are several annotators, as in the
development files, which ReQA does not use, every short answer of every one in a paragraph counts; ENDX's counts for its
test set, 1.43 answers a question, show that it took several, but not by which rule.
"""

import dataclasses
import functools
import html
import re
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any

from endx_jax.data.paragraphs import Answer, Paragraph, Question
from endx_jax.data.readers import files
from endx_jax.data.readers.marks import TAG
from endx_jax.data.readers.question_ids import QuestionIds
from endx_jax.errors import EndxError

# In a page, and as a token of the simplified text.
_TAG = re.compile(r"<[^<>]*>")
_TAG_TOKEN = re.compile(TAG)


@dataclasses.dataclass(frozen=True, slots=True)
class _Span:
    """Tokens from `start` up to, not including, `end`."""

    start: int
    end: int


class _Page:
    """The tokens of a page; they are looked at only where an annotation points."""

    def __init__(self, row: dict, where: str):
        self.where = where
        self._row = row
        self._full = "document_text" not in row

    @functools.cached_property
    def _tokens(self) -> list:
        if self._full:
            return files.listed(files.value(self._row, "document_tokens", self.where), f"{self.where}: document_tokens")
        text = self._row["document_text"]
        files.text(text, f"{self.where}: 'document_text'", may_be_empty=True)
        return text.split(" ")

    @functools.cached_property
    def _html(self) -> bytes:
        return str(files.value(self._row, "document_html", self.where)).encode()

    def __len__(self) -> int:
        return len(self._tokens)

    def word(self, number: int) -> str:
        """A token."""
        return str(self._of_token(number, "token")) if self._full else self._tokens[number]

    def text(self, span: _Span) -> tuple[str, dict[int, int]]:
        """The text of some tokens without tags, and for each token that is none where in it the token starts."""
        parts: list[str] = []
        places: dict[int, int] = {}
        length, before = 0, None
        for number in range(span.start, span.end):
            if self._is_tag(number):
                continue
            if before is not None and self._apart(before, number):
                parts.append(" ")
                length += 1
            places[number] = length
            word = self.word(number)
            parts.append(word)
            length += len(word)
            before = number
        return "".join(parts), places

    def _is_tag(self, number: int) -> bool:
        if self._full:
            return bool(self._of_token(number, "html_token"))
        return _TAG_TOKEN.fullmatch(self.word(number)) is not None

    def _apart(self, first: int, second: int) -> bool:
        """Whether the page has white space, outside of tags, between two tokens; the simplified text does not say."""
        if not self._full:
            return True
        gap = self._html[self._byte(first, "end_byte") : self._byte(second, "start_byte")]
        return any(map(str.isspace, _TAG.sub("", gap.decode(errors="replace"))))

    def _byte(self, number: int, key: str) -> int:
        return _whole(self._tokens[number], key, f"{self.where}: document_tokens[{number}]", len(self._html))

    def _of_token(self, number: int, key: str) -> Any:
        return files.value(self._tokens[number], key, f"{self.where}: document_tokens[{number}]")


def paragraphs(path: str) -> Iterator[Paragraph]:
    """Yields the paragraphs that hold answers, in the order of the file and with one question each.

    A paragraph is the long answer's text without tags. Between words is a space where the page has white space outside
    of tags; the simplified file does not tell, and there all tokens stand apart: `( 1969 ) .`. Pages are read one at a
    time.

    Args:
      path: `.jsonl` or `.jsonl.gz`.

    Raises:
      EndxError: the file is broken, named by line.
    """
    ids = QuestionIds()
    for number, row in files.objects(path):
        where = f"{path}, line {number}"
        name = files.identifier(files.value(row, "example_id", where), f"{where}: 'example_id'")
        text = str(files.value(row, "question_text", where))
        files.text(row["question_text"], f"{where}: 'question_text'")
        ids.add(name, text, where)
        page = _Page(row, where)
        for long, short in _answers(row, page).items():
            context, places = page.text(long)
            answers = dict.fromkeys(answer for span in short if (answer := _answer(page, span, places)))
            if answers:
                yield Paragraph(_title(row, name), context, (Question(name, text, tuple(answers)),))


def _answers(row: Mapping, page: _Page) -> dict[_Span, list[_Span]]:
    """The short answers by the paragraph that they stand in."""
    annotations = files.listed(files.value(row, "annotations", page.where), f"{page.where}: 'annotations'")
    found: dict[_Span, list[_Span]] = {}
    for n, annotation in enumerate(annotations):
        where = f"{page.where}: annotations[{n}]"
        listed = files.listed(files.value(annotation, "short_answers", where), f"{where}.short_answers")
        long = files.value(annotation, "long_answer", where)
        if not listed or (len(annotations) == 1 and len(listed) > 1):
            continue
        if files.value(long, "start_token", f"{where}.long_answer") == -1:
            continue
        paragraph = _span(long, f"{where}.long_answer", _Span(0, len(page)))
        if page.word(paragraph.start) == "<P>":
            spans = [_span(short, f"{where}.short_answers[{k}]", paragraph) for k, short in enumerate(listed)]
            found.setdefault(paragraph, []).extend(spans)
    return found


def _span(holder: object, where: str, within: _Span) -> _Span:
    start, end = (_whole(holder, key, where, within.end) for key in ("start_token", "end_token"))
    if not within.start <= start < end:
        raise EndxError(f"{where} is from token {start} to {end}, not within {within.start} to {within.end}")
    return _Span(start, end)


def _whole(holder: object, key: str, where: str, most: int) -> int:
    found = files.value(holder, key, where)
    if type(found) is not int or not 0 <= found <= most:
        raise EndxError(f"{where}.{key} is {found!r}; it must be a whole number from 0 to {most}")
    return found


def _answer(page: _Page, span: _Span, places: Mapping[int, int]) -> Answer | None:
    """The answer, which starts at its first token that is no tag; None where there is none."""
    start = next((places[number] for number in range(span.start, span.end) if number in places), None)
    return None if start is None else Answer(page.text(span)[0], start)


def _title(row: Mapping, name: str) -> str:
    """The title of the page, in the simplified files that in its address; or where there is neither, the id."""
    if title := str(row.get("document_title") or ""):
        return title
    query = urllib.parse.urlsplit(html.unescape(str(row.get("document_url") or ""))).query
    found = urllib.parse.parse_qs(query).get("title", [f"page of {name}"])
    return found[0].replace("_", " ")
