"""Data format: how it is recognized at a path, and what is read from it."""

import dataclasses
import functools
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, TypeVar

from endx_jax.data.formats import document_files, folders, row_files, text_files
from endx_jax.data.formats.text_files import ARROW_ENDINGS, InvalidRows
from endx_jax.data.sets.documents import Document
from endx_jax.data.sets.examples import Example, Judgements
from endx_jax.data.sets.paragraphs import Paragraph
from endx_jax.data.sets.records import RetrievalSet
from endx_jax.data.settings import DataSettings
from endx_jax.errors import EndxError


class Place:
    """Path of data, with what formats look at to recognize their own; each is read once, when it is first used."""

    def __init__(self, path: str):
        """Stores a local path, or the name of a prepared set."""
        self.path = path
        self.is_folder, self.is_file = os.path.isdir(path), os.path.isfile(path)

    def has(self, *names: str) -> bool:
        """Returns true for a folder with a file of one of these names, plain or `.gz`."""
        return self.is_folder and any(os.path.isfile(self.part(name)) for name in names)

    def part(self, name: str) -> str:
        """Returns the path of a file in the folder, with `.gz` appended if only that file exists."""
        return folders.plain_or_gzip(os.path.join(self.path, name))

    @functools.cached_property
    def documents(self) -> list[str]:
        """Names of the files, relative to the folder, if they are documents; see `document_files.names_in`."""
        return document_files.names_in(self.path)

    @functools.cached_property
    def files(self) -> list[str]:
        """The file, or the files of the first split of a folder or pattern of tables; none for another folder."""
        if self.is_folder and not folders.holds_shards(self.path):
            return []
        files = next(iter(folders.files_by_split(self.path).values()))
        if not os.path.exists(files[0]):
            raise EndxError(f"{files[0]}: no such file or folder")
        return files

    @property
    def ending(self) -> str:
        """Ending of the name of the first of `files` in lower case, without `.gz` of texts; empty if there are none."""
        if not self.files:
            return ""
        ending = os.path.splitext(text_files.uncompressed(self.files[0]))[1]
        return f"{ending}.gz" if ending in ARROW_ENDINGS and self.files[0].lower().endswith(".gz") else ending

    @functools.cached_property
    def is_object(self) -> bool:
        """True for a JSON file that holds one object and not, in it, a list of rows."""
        file = self.files[0] if self.ending == ".json" else ""
        rows = (text_files.holds_list, text_files.holds_lines, text_files.list_inside)
        return bool(file) and not any(holds(file) for holds in rows)

    @functools.cached_property
    def row(self) -> dict[str, Any]:
        """First valid row of JSON or Arrow files, and not one of SQuAD without an answer; empty for other data."""
        if self.ending not in (".json", ".jsonl", *ARROW_ENDINGS) or self.is_object:
            return {}
        invalid = InvalidRows(self.path, skip=True)
        rows = (row for file in self.files for _, _, row in row_files.read_rows(file, invalid))
        return next((row for row in rows if "context" not in row or row.get("answers") != []), {})

    def has_keys(self, *choices: Collection[str]) -> bool:
        """Returns true if `row` has all keys of one of the choices."""
        return any(self.row.keys() >= set(keys) for keys in choices)


@dataclasses.dataclass(frozen=True)
class ReadOptions:
    """Options of reading; a format ignores those that it has no use for.

    Attributes:
      split: split of a folder that has several; None for its only one.
      pool: retrieval unit of reading-comprehension data: `answers`, `sentences` or `paragraphs` (whole ones, with
        equal questions merged only if their ids are equal); empty for whole paragraphs with equal questions merged.
      whole: false if only the candidates that are judged or hard negatives are needed, of a BEIR folder.
      skip_invalid: true to skip invalid rows, and to log their number and the first reason.
      question_column: name of the question's column, in any case; None for the names in `columns.NAMES`.
      answer_column: name of the answer's column, likewise.
      text_column: name of the column of a document's text, likewise; in pairs, of the answer.
      id_column: name of the column of a document's id, likewise; empty for the number of its line.
      title_column: name of the column of a document's title, likewise.
      settings: settings of the run, for data that a config file makes.
      part: part of a table to read; None for all.
      say: function that receives a line about the documents that were read.
    """

    split: str | None = None
    pool: str = ""
    whole: bool = True
    skip_invalid: bool = False
    question_column: str | None = None
    answer_column: str | None = None
    text_column: str | None = None
    id_column: str | None = None
    title_column: str | None = None
    settings: DataSettings = dataclasses.field(default_factory=DataSettings)
    part: row_files.FilePart | None = None
    say: Callable[[str], object] = str


DEFAULTS = ReadOptions()
T = TypeVar("T")
# Function that reads one kind of contents; invalid data raise EndxError, inside `InvalidRows.row` for each row.
Reader = Callable[[Place, ReadOptions, InvalidRows], T]


@dataclasses.dataclass(frozen=True)
class Format:
    """Data format, an entry of `registry.FORMATS`.

    Attributes:
      name: name in messages.
      matches: function that recognizes data of this format.
      examples: reader of (location in the file, `Example`) of each question or row.
      paragraphs: reader of the `Paragraph`s of reading-comprehension data.
      documents: reader of (location, `Document`); by default the passages of the other contents.
      judgements: reader of `Judgements` that does not need the passages.
      records: reader of the whole `RetrievalSet`, for a format that says more than its examples.
      parts: paths of the training and the test data, for data that has both; None for data that has one.
      default_split: split to evaluate if none is requested.
      sets: paths and splits of the data sets by name, for a suite; with the requested split.
      in_parts: true if `examples` reads `ReadOptions.part` of the data.
    """

    name: str
    matches: Callable[[Place], bool]
    examples: Reader[Iterable[tuple[str, Example]]] | None = None
    paragraphs: Reader[Iterable[Paragraph]] | None = None
    documents: Reader[Iterable[tuple[str, Document]]] | None = None
    judgements: Reader[Judgements] | None = None
    records: Reader[RetrievalSet] | None = None
    parts: Callable[[Place], tuple[str, str] | None] = lambda place: None
    default_split: Callable[[Place], str] = lambda place: "test"
    sets: Callable[[Place, str | None], dict[str, tuple[str, str]]] = lambda place, split: {}
    in_parts: bool = False


def each_row(parse: Callable[[dict, str], Example]) -> Reader[Iterable[tuple[str, Example]]]:
    """Returns a reader of the examples of rows; `parse` takes the values of a row and its location for messages."""

    def examples(place: Place, options: ReadOptions, invalid: InvalidRows) -> Iterator[tuple[str, Example]]:
        for _, where, row in row_files.read_rows(place.path, invalid, split=options.split, part=options.part):
            with invalid.row():
                yield where, parse(row, where)

    return examples
