"""Reader of Natural Questions (Kwiatkowski et al. 2019), simplified or full, with one annotated page per line.

As in ReQA (Ahmad et al. 2019), a training question is used if its annotator marked one short answer, inside a long
answer that is a paragraph, `<P>`. The development files, which ReQA does not use, have several annotators; there, every
short answer in a paragraph is used. ENDX (Wang et al. 2021) has 1.43 answers per question in its test set, so it used
several as well, but it does not state its rule.
"""

import functools
import html
import re
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any

from endx_jax import json_files
from endx_jax.data.formats import row_files
from endx_jax.data.formats.format import Format
from endx_jax.data.formats.mrqa import TAG
from endx_jax.data.formats.text_files import InvalidRows
from endx_jax.data.sets.examples import UniqueIds
from endx_jax.data.sets.paragraphs import AnswerSpan, Paragraph, Question
from endx_jax.errors import EndxError

# Tags in the HTML of a page, and tokens of the simplified text that are tags.
_TAG = re.compile(r"<[^<>]*>")
_TAG_TOKEN = re.compile(TAG)


class _Page:
    """Tokens of a page; only those inside annotations are parsed."""

    def __init__(self, row: dict, where: str):
        self.where = where
        self._row = row
        self._full = "document_text" not in row

    @functools.cached_property
    def _tokens(self) -> list:
        if self._full:
            return json_files.list_at(self._row, "document_tokens", self.where)
        text = json_files.text_at(self._row, "document_text", self.where, may_be_empty=True, strip=False)
        return text.split(" ")

    @functools.cached_property
    def _html(self) -> bytes:
        return str(json_files.value(self._row, "document_html", self.where)).encode(errors="surrogatepass")

    def __len__(self) -> int:
        return len(self._tokens)

    def word(self, number: int) -> str:
        """Returns a token."""
        return str(self._of_token(number, "token")) if self._full else self._tokens[number]

    def text(self, span: range) -> tuple[str, dict[int, int]]:
        """Returns the text of some tokens without tags, and the start in it of each token that is not a tag."""
        parts: list[str] = []
        places: dict[int, int] = {}
        length, before = 0, None
        for number in span:
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
        """Returns true if white space separates two tokens of the page without tags; always true if simplified."""
        if not self._full:
            return True
        gap = self._html[self._byte(first, "end_byte") : self._byte(second, "start_byte")]
        return any(map(str.isspace, _TAG.sub("", gap.decode(errors="replace"))))

    def _byte(self, number: int, key: str) -> int:
        where = f"{self.where}: document_tokens[{number}].{key}"
        return json_files.as_whole(self._of_token(number, key), where, most=len(self._html))

    def _of_token(self, number: int, key: str) -> Any:
        return json_files.value(self._tokens[number], key, f"{self.where}: document_tokens[{number}]")


def natural_paragraphs(path: str, invalid: InvalidRows | None = None, split: str | None = None) -> Iterator[Paragraph]:
    """Yields the paragraphs that contain answers, in file order, each with one question; reads one page at a time.

    A paragraph is the text of a long answer without tags. Words are separated as in the page. Simplified files do not
    have this information, so all their tokens are separated: `( 1969 ) .`.

    Args:
      path: file, folder or pattern of `row_files.read_rows`.
      invalid: handler of invalid lines; by default they raise EndxError.
      split: split of a folder.

    Raises:
      EndxError: the file is invalid; the message has the line.
    """
    invalid, ids = invalid or InvalidRows(path), UniqueIds("question")
    for _, where, row in row_files.read_rows(path, invalid, split=split):
        with invalid.row():
            yield from [*_paragraphs(row, where, ids)]


def _paragraphs(row: dict, where: str, ids: UniqueIds) -> Iterator[Paragraph]:
    name = json_files.identifier_at(row, "example_id", where)
    text = json_files.text_at(row, "question_text", where, strip=False)
    ids.add([(text, name)], where)
    page = _Page(row, where)
    for long, short in _answers(row, page).items():
        context, places = page.text(long)
        json_files.as_text(context, f"{where}: the paragraph", may_be_empty=True)
        title = json_files.as_text(_title(row, name), f"{where}: the title", may_be_empty=True)
        answers = dict.fromkeys(answer for span in short if (answer := _answer(page, span, places)))
        if answers:
            yield Paragraph(title, context, (Question(name, text, tuple(answers)),))


def _answers(row: Mapping, page: _Page) -> dict[range, list[range]]:
    """Returns the short answers by their paragraph."""
    annotations = json_files.list_at(row, "annotations", page.where)
    answers: dict[range, list[range]] = {}
    for n, annotation in enumerate(annotations):
        where = f"{page.where}: annotations[{n}]"
        listed = json_files.list_at(annotation, "short_answers", where)
        long = json_files.value(annotation, "long_answer", where)
        if not listed or (len(annotations) == 1 and len(listed) > 1):
            continue
        if json_files.value(long, "start_token", f"{where}.long_answer") == -1:
            continue
        paragraph = _span(long, f"{where}.long_answer", range(len(page)))
        if page.word(paragraph.start) == "<P>":
            spans = [_span(short, f"{where}.short_answers[{k}]", paragraph) for k, short in enumerate(listed)]
            answers.setdefault(paragraph, []).extend(spans)
    return answers


def _span(holder: object, where: str, within: range) -> range:
    """Returns a span of tokens; raises EndxError if it is empty or not in `within`."""
    start, end = (
        json_files.as_whole(json_files.value(holder, key, where), f"{where}.{key}", most=within.stop)
        for key in ("start_token", "end_token")
    )
    if not within.start <= start < end:
        raise EndxError(f"{where} is from token {start} to {end}, not within {within.start} to {within.stop}")
    return range(start, end)


def _answer(page: _Page, span: range, places: Mapping[int, int]) -> AnswerSpan | None:
    """Returns the answer, which starts at its first token that is not a tag; None if there is no such token."""
    start = next((places[number] for number in span if number in places), None)
    return None if start is None else AnswerSpan(page.text(span)[0], start)


def _title(row: Mapping, name: str) -> str:
    """Returns the title of the page, or the one in its URL in simplified files, or a name made from the id."""
    if title := str(row.get("document_title") or ""):
        return title
    try:
        query = urllib.parse.urlsplit(html.unescape(str(row.get("document_url") or ""))).query
        titles = urllib.parse.parse_qs(query).get("title", [f"page of {name}"])
    except ValueError:  # not a URL, or one with too many parameters
        return f"page of {name}"
    return titles[0].replace("_", " ")


NATURAL_QUESTIONS = Format(
    "natural_questions",
    lambda place: place.has_keys(
        {"annotations", "document_text"},
        {"question_text", "document_text"},
        {"annotations", "document_tokens"},
        {"annotations", "document_html"},
    ),
    paragraphs=lambda place, options, invalid: natural_paragraphs(place.path, invalid, options.split),
)
