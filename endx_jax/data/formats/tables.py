"""Tables with a question and an answer, or a document, in each row: JSONL, lists in JSON or YAML, CSV, TSV and Arrow.

A table is one of documents if it has a column `text`, or no columns of a question and an answer.
"""

import collections
import contextlib
import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from endx_jax import json_files
from endx_jax.data.formats import columns, folders, row_files, text_files
from endx_jax.data.formats.columns import ANSWER, FLAGS, ID, JUDGING, LABEL, NEGATIVE, QUESTION, TEXT, TITLE
from endx_jax.data.formats.format import Format, Place, ReadOptions
from endx_jax.data.formats.row_files import Row
from endx_jax.data.formats.text_files import ARROW_ENDINGS, YAML, InvalidRows
from endx_jax.data.formats.training_files import texts
from endx_jax.data.sets.documents import Document, Scalar
from endx_jax.data.sets.examples import Example, texts_of
from endx_jax.errors import EndxError, counted

ENDINGS = (".json", ".jsonl", ".csv", ".tsv", *YAML, *ARROW_ENDINGS)
NUMBER = re.compile(r"[+-]?[\d.]+")
LABELS_AS_TEXT = re.compile(r"\[\W*(\d|true|false)", re.IGNORECASE)  # a list of them
FIRST = 100  # first rows of a corpus, of which one must have each named column: rows of JSON may lack some
HTML = re.compile(r"<(p|div|h[1-6]|ul|ol|table)\b[^<>]*>", re.IGNORECASE)  # as of exports of Zendesk

# (location in the file for messages, document)
Placed = tuple[str, Document]


class Columns(NamedTuple):
    """Names of the columns of question, answer, hard negatives and labels."""

    question: str
    answer: str
    negatives: tuple[str, ...]
    labels: tuple[str, ...]


class ColumnParser:
    """Parser of rows with a question and an answer each.

    A question may have several rows with different answers. Questions and answers may be lists of texts, also written
    as one text (`columns.strings`): each is an answer of each question, and empty ones are ignored. Columns named
    `negative`, `negative_1`, ... hold hard negatives, each a text or a list of texts. An answer with a 0 in one of the
    columns `LABELS` is a hard negative of its question; a list of answers may have a list of labels. Empty hard
    negatives and other columns are ignored. A text may be a chat with one message; each reply of a longer chat is the
    answer of the message before it (`columns.turns`).
    """

    def __init__(self, question: str | None = None, answer: str | None = None):
        """Stores the names of the columns of question and answer; None for those of `columns.NAMES`."""
        self._names = {QUESTION: question, ANSWER: answer}
        self._known: dict[tuple[str, ...], Columns] = {}

    def choose(self, row: Iterable[str], where: str) -> Columns:
        """Returns the columns of a row with these keys; raises EndxError if one is missing, or there are several."""
        keys = tuple(name for name in row if not (isinstance(row, dict) and isinstance(row[name], dict)))
        if keys not in self._known:
            if self._names[ANSWER] is None and isinstance(row, dict) and "'is_selected'" in str(row.get("passages")):
                ranking = "read its passage ranking (docs/data.md#ms-marco)"
                told = "'passages' are of MS MARCO's question answering, where many rows have no answer"
                raise EndxError(f"{where}: {told}: {ranking}, or name a column with {columns.flags(ANSWER)}")
            self._known.clear()  # nearly all rows have the keys of the previous row
            question, answer = (columns.choose(side, row, where, name) for side, name in self._names.items())
            labels = tuple(name for name in keys if name.casefold() in JUDGING and name not in (question, answer))
            negatives = tuple(name for name in keys if NEGATIVE.fullmatch(name))
            self._known[keys] = Columns(question, answer, negatives, labels)
        return self._known[keys]

    def labelled(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yields the rows as `asked` returns them, and logs unused columns of 0 and 1, and chats of several turns.

        Raises:
          EndxError: a label varies and is not 0 or 1, or all answers are `columns.NO_TEXT`, even if invalid rows are
            skipped.
        """
        first: dict[str, str] = {}
        flags: dict[str, set[bool]] = {}  # values of unused columns that hold only 0 and 1
        count, where, chats, kinds, part = 0, "", 0, collections.Counter[str | None](), dict[str, Any]()
        for number, where, row in rows:
            asked = self.asked(row, where)
            chats += len(asked) > 1 and not row.keys() <= asked[0].keys() and any(map(row.__contains__, columns.CHATS))
            for part in asked or [row]:
                count += 1
                chosen = Columns("", "", (), ())
                with contextlib.suppress(EndxError):  # parsing the row raises the same error
                    chosen = self.choose(part, where)
                if None not in kinds:  # no answer with a text so far
                    answers = part.get(chosen.answer)
                    listed = answers if isinstance(answers, list) else [answers]
                    found = (columns.NO_TEXT.fullmatch(str(text).strip()) for text in listed)
                    kinds.update(one and one.lastgroup for one in found)
                for name in chosen.labels:
                    values: list[str] = []
                    with contextlib.suppress(EndxError):  # parsing the row raises the same error
                        values = _labels(part, name, chosen.answer, where)
                    for value in values:
                        _check_label(name, value, first.setdefault(name, value), where)
                if count == 1:
                    flags = {name: set() for name in part.keys() - {*chosen.labels, *chosen[:2]}}
                for name in [*flags]:
                    flag = LABEL.fullmatch(value := str(part.get(name)).strip())
                    if flag:
                        flags[name].add(bool(flag["right"]))
                    elif value not in ("", "None", "nan"):
                        del flags[name]
            yield from ((number, where, part) for part in asked)
        file = where.rpartition(", ")[0] or where
        no_texts = None not in kinds and 2 * kinds["number"] < kinds.total()
        if count >= columns.FEWEST and no_texts and self._names[ANSWER] is None:
            told = f"all {count:,} answers of column {chosen.answer!r} are letters, numbers, ids or objects"
            hint = f"write their texts in their place, or name a column with {columns.flags(ANSWER)}"
            raise EndxError(f"{file}: {told}, such as {part[chosen.answer]!r:.60}; {hint}")
        if chats:
            said = "each is paired with the reply after it, without what was said before"
            text_files.LOG.warning("%s: %s with several questions: %s", file, counted(chats, "chat"), said)
        unused = sorted(name for name, values in flags.items() if len(values) == 2)
        if unused and count > 2:
            text_files.LOG.warning(
                "%s: only 0 and 1 (or true and false, yes and no) in %s, which is not used; if they say which answers "
                "are right, name the column `label`",
                file,
                json_files.format_names(unused),
            )

    def asked(self, row: dict, where: str) -> list[dict]:
        """Splits a row into one row for each question of a list, or each reply of a chat; see `columns.readable`.

        Of a row without questions, such as a category, these are the rows in its lists, each with its further columns
        (`_is_read`). A label of 0 is that of the last reply, which is then the only row.
        """
        cells = {name: columns.readable(value) for name, value in row.items()}
        try:
            name = self.choose(cells, where).question
        except EndxError:  # parsing the row raises the same error
            inner = [item for value in row.values() if isinstance(value, list) for item in value]
            found = (columns.find(QUESTION, item, self._names[QUESTION]) for item in inner)
            is_asked = any(
                isinstance(cells[name], str) for name in columns.find(QUESTION, cells, self._names[QUESTION])
            )
            if inner and not is_asked and all(isinstance(item, dict) for item in inner) and all(found):
                around = (item for item in row.items() if not isinstance(item[1], list | dict))
                outer = {name: value for name, value in around if not _is_read(name)}
                return [part for item in inner for part in self.asked(outer | item, where)]
            replies = columns.turns(row, *(name or side for side, name in self._names.items())) or [cells]
            labels = (str(value).strip() for name, value in row.items() if name.casefold() in JUDGING)
            return replies[-1:] if any(map(_is_wrong, labels)) else replies
        texts, more = cells[name], cells.get("input")
        if name == "instruction" and self._names[QUESTION] is None and isinstance(more, str) and more.strip():
            return [cells | {name: f"{str(texts).strip()}\n{more}"}]  # of Alpaca
        if not isinstance(texts, list):
            return [cells]
        return [cells | {name: text} for text in texts if str(text or "").strip()]

    def __call__(self, row: dict, where: str) -> Example:
        """Parses a row that `asked` returned."""
        used = self.choose(row, where)
        for name in (used.question, used.answer, *used.negatives):
            columns.check_list(row[name], f"{where}: {name!r}")
        question, answers = json_files.text_at(row, used.question, where), row[used.answer]
        if not isinstance(answers, list):
            answers = [json_files.as_text(answers, f"{where}: {used.answer!r}")]
        judged = [_labels(row, name, used.answer, where) for name in used.labels]
        right: list[str] = []
        wrong: list[str] = []
        for text, *labels in zip(texts(answers, f"{where}: {used.answer!r}"), *judged, strict=True):
            (wrong if any(map(_is_wrong, labels)) else right).append(text)
        negatives = (texts(row.get(name), f"{where}: {name!r}") for name in used.negatives)
        return Example(question, [*filter(None, right)], [*filter(None, itertools.chain(wrong, *negatives))])


def _is_read(name: str) -> bool:
    """Returns true for names of columns of questions, texts, titles, ids, answers, hard negatives and labels."""
    named = NEGATIVE.fullmatch(name) or any(columns.find(side, [name]) for side in columns.NAMES)
    return bool(named) or name.casefold() in JUDGING


def _labels(row: dict, name: str, answer: str, where: str) -> list[str]:
    """Returns the label in column `name` of each answer: of a list of answers an item of a list, or else the cell."""
    cell, answers = row[name], row[answer]
    if not isinstance(answers, list):
        return [str(cell).strip()]
    listed = cell if isinstance(cell, list) and len(cell) == len(answers) else [cell] * len(answers)
    labels = [str(label).strip() for label in listed]
    if any(map(LABELS_AS_TEXT.match, labels)):
        raise EndxError(f"{where}: {name!r} has not one label for each answer: write a row for each answer")
    return labels


def _is_wrong(label: str) -> bool:
    found = LABEL.fullmatch(label)
    return found is not None and not found["right"]


def _check_label(name: str, value: str, before: str, where: str) -> None:
    """Raises EndxError if a value differs from the first of its column, unless they are labels, or texts of a flag."""
    fits = LABEL.fullmatch(value) and LABEL.fullmatch(before)
    numbers = NUMBER.fullmatch(value) and NUMBER.fullmatch(before)
    flagged = LABEL.fullmatch(value) or LABEL.fullmatch(before)  # 0 among texts would be a wrong answer
    is_text = name.casefold() in FLAGS and not (numbers or flagged)
    if value != before and not (fits or is_text):
        raise EndxError(
            f"{where}: column {name!r} is {value[:40]!r}, and {before[:40]!r} above: only 1 (right) and 0 "
            "(wrong) say which answers are right; write these, or leave out the wrong rows and the column"
        )


def examples(place: Place, options: ReadOptions, invalid: InvalidRows) -> Iterator[tuple[str, Example]]:
    """Yields the questions and answers of the rows: see `ColumnParser`."""
    parser = ColumnParser(options.question_column, options.answer_column)
    rows = row_files.read_rows(place.path, invalid, check=parser.choose, split=options.split, part=options.part)
    for _, where, row in parser.labelled(rows):
        with invalid.row():
            yield where, parser(row, where)


def documents(place: Place, options: ReadOptions, invalid: InvalidRows) -> Iterator[Placed]:
    """Yields the documents of the rows.

    The text begins with the title and a space. The title and all further columns or keys with a string, a number or a
    boolean become metadata, and so do the values of an object named `metadata`, as in BEIR; empty, null and nan values
    are left out. A list of texts named `questions` has known questions. A `.tsv` file of two columns without a header,
    as MS MARCO's collection, has ids and texts; it has no header if its first id contains a digit. Rows of pairs are
    their distinct answers with their known questions.
    """
    names = options.text_column, options.id_column, options.title_column, options.question_column
    if place.ending == ".tsv" and not any(names):
        files = folders.table_files(place.path, options.split)
        first = text_files.first_text_line(files[0]).split("\t")
        if len(first) == 2 and any(map(str.isdigit, first[0])):
            for where, name, text in itertools.chain.from_iterable(map(ids_and_texts, files)):
                yield where, Document(name, text)
            return
    table = _DocumentTable(*names, options.say)
    rows = row_files.read_rows(place.path, check=table.check_header, split=options.split)
    begin = [*itertools.islice(rows, FIRST if options.title_column or options.question_column else 1)]
    table.check_named(begin)
    rows = itertools.chain(begin, rows)
    if begin and table.holds_pairs(begin[0][2]):
        yield from _answers(rows, table)
    else:
        for number, where, row in rows:
            document = table.document(row, number, where)
            if document.numbered:
                options.say("the corpus has no column of ids: its texts are numbered; name yours with id_column")
            yield where, document


@dataclasses.dataclass(frozen=True)
class _DocumentTable:
    """Columns of a table of documents, by their names in `ReadOptions`, and a function that prints each line once."""

    text: str | None = None
    id: str | None = None
    title: str | None = None
    question: str | None = None
    say: Callable = str

    @functools.cached_property
    def pairs(self) -> ColumnParser:
        """Parser of rows with a question and an answer."""
        return ColumnParser(self.question, self.text)

    def holds_pairs(self, row: Iterable[str]) -> bool:
        """Returns true if a row, or one with these columns, has columns of a question and an answer, one or several."""
        if isinstance(row, dict):
            row = next(iter(self.pairs.asked(row, "")), row)
        sides = ((QUESTION, self.question), (ANSWER, self.text))
        has_text = self.text is None and columns.called(TEXT, row)
        return not has_text and all(columns.find(side, row, name) for side, name in sides)

    def chosen(self, row: Iterable[str], where: str) -> str:
        """Returns the column of the text; raises EndxError if it or the named column of ids is missing."""
        if self.id:
            columns.choose(ID, row, where, self.id)
        return columns.choose(TEXT, row, where, self.text)

    def check_header(self, header: list[str], where: str) -> None:
        """Raises EndxError unless a header line has the column of the text, or those of pairs."""
        if not self.holds_pairs(header):
            self.chosen(header, where)

    def check_named(self, begin: Sequence[Row]) -> None:
        """Raises EndxError if none of the first rows has the named column of the title, or of the question."""
        for side, name in ((TITLE, self.title), (QUESTION, self.question)):
            if begin and name:
                parts = (part for _, where, row in begin for part in (row, *self.pairs.asked(row, where)))
                columns.choose(side, dict.fromkeys(itertools.chain.from_iterable(parts)), begin[0][1], name)

    def document(self, row: dict, number: int | str, where: str) -> Document:
        """Returns the document of a row; `number` is its id if the row has none."""
        text_key, row = self.chosen(row, where), dict(row)
        text = text_of(row, text_key, where)
        if HTML.match(text):
            self.say("texts begin with tags of HTML, which are kept; of .html files they are left out")
        del row[text_key]
        key = "" if self.id == "" else next(iter(columns.find(ID, row, self.id)), "")
        name = row.pop(key) if key else number
        name = json_files.as_text(json_files.identifier(name, f"{where}: {key!r}"), f"{where}: {key!r}")
        title_key = next(iter(columns.find(TITLE, row, self.title)), TITLE)
        title = text_of(row, title_key, where) if title_key in row else ""
        if title:
            del row[title_key]
            row[TITLE] = title
        questions: list[str] = []
        for column in columns.called("questions", row):
            asked = columns.readable(row[column])
            if isinstance(asked, list) and all(isinstance(question, str) for question in asked):
                questions += filter(None, texts(asked, f"{where}: {column!r}"))
                del row[column]
        inner = row.pop("metadata") if isinstance(row.get("metadata"), dict) else {}
        metadata = _scalars(row, where, self.say) | _scalars(inner, where, self.say)
        return Document(name, f"{title} {text}".strip(), metadata, tuple(questions), numbered=not key)


def text_of(row: dict, key: str, where: str) -> str:
    """Returns the text in a column of a row; empty if it is null or NaN."""
    missing = key in row and json_files.is_missing(row[key])
    return "" if missing else json_files.text_at(row, key, where, may_be_empty=True)


def _scalars(row: dict, where: str, say: Callable) -> dict[str, Scalar]:
    scalars: dict[str, Scalar] = {}
    for key, value in row.items():
        json_files.as_text(key, f"{where}: a key", may_be_empty=True)
        if isinstance(value, str):
            if stripped := json_files.as_text(value, f"{where}: {key!r}", may_be_empty=True):
                scalars[key] = stripped
        elif isinstance(value, int):
            scalars[key] = value if abs(value) < 2**63 else str(value)  # other programs limit numbers to 64 bits
        elif isinstance(value, float):
            if math.isfinite(value):
                scalars[key] = value
        elif value:
            say(f"{key[:40]!r} is left out: metadata are texts, numbers and truth values")
    return scalars


def _answers(rows: Iterable[Row], table: _DocumentTable) -> Iterator[Placed]:
    """Yields each distinct answer of pairs as a document whose known questions are those that it answers, if any."""
    merged: dict[str, tuple[str, Document, dict[str, None]]] = {}
    pairs, other = table.pairs, 0
    for _, where, row in pairs.labelled(rows):
        names, example = pairs.choose(row, where), pairs(row, where)
        others = {name: row[name] for name in row if name not in (names.question, *names.negatives, *names.labels)}
        for passage in texts_of(example.right or example.wrong[:1]):
            answers = _DocumentTable(names.answer, table.id, table.title, say=table.say)
            document = answers.document({**others, names.answer: passage}, f"d{len(merged)}", where)
            _, first, questions = merged.setdefault(document.text, (where, document, {}))
            asked = (example.question, *document.questions) if example.right else document.questions
            questions.update(dict.fromkeys(asked))
            other += first.metadata != document.metadata
    if other:
        table.say(f"repeated answers with other metadata keep those of their first row: {counted(other, 'row')}")
    for where, document, questions in merged.values():
        yield where, dataclasses.replace(document, questions=tuple(questions))


def names_columns(place: Place, *sides: str) -> bool:
    """Returns true for a table with a header; a `.tsv` file has one if its first line names a column of these sides."""
    if place.ending != ".tsv":
        return place.ending in ENDINGS
    header = re.split(r'["\t]+', text_files.first_text_line(place.files[0]))
    return any(columns.find(side, header) for side in sides)


def ids_and_texts(path: str) -> Iterator[tuple[str, str, str]]:
    """Yields (location, id, text) for each line of a two-column table without header or quotes; skips blank lines.

    Raises:
      EndxError: a line does not have two columns.
    """
    for number, line in text_files.lines(path):
        where = f"{path}, line {number}"
        name, *cells = line.split("\t")
        if len(cells) == 1:
            text = json_files.as_text(cells[0], where, may_be_empty=True)
            yield where, json_files.as_text(name, f"{where}: the id"), text
        elif line.strip():
            raise EndxError(f"{where}: {1 + len(cells)} tab-separated columns where each line has an id and a text")


def lines(place: Place, options: ReadOptions, invalid: InvalidRows) -> Iterator[Placed]:
    """Yields each line of text files as a document; its id is its number, counted on from file to file."""
    listed = (
        (file, n, line) for file in folders.table_files(place.path, options.split) for n, line in text_files.lines(file)
    )
    for count, (file, number, line) in enumerate(listed, start=1):
        if text := line.strip():
            yield f"{file}, line {number}", Document(str(count), text, numbered=True)


def _is_lines(place: Place) -> bool:
    """Returns true for a text file, and for several if they are not documents, as packed ones are not."""
    found = not place.is_folder and place.ending == ".txt" and (place.is_file or not place.documents)
    if found and text_files.first_text_line(place.files[0]).startswith("#separator:"):
        hint = "put a line with a name for each column, such as front, in place of the lines with #, and name it .tsv"
        raise EndxError(f"{place.files[0]} holds notes of Anki: {hint}")
    return found


COLUMNS = Format(
    "columns", lambda place: place.ending in ENDINGS, examples=examples, documents=documents, in_parts=True
)
LINES = Format("lines", _is_lines, documents=lines)
DPR_PASSAGES = "psgs_w100.tsv"  # name of DPR's file of passages
PASSAGES = Format(
    "passages",
    lambda place: place.has(DPR_PASSAGES),
    documents=lambda place, options, invalid: documents(Place(place.part(DPR_PASSAGES)), options, invalid),
)
