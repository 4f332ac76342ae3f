"""Reads a corpus, the documents to be searched, one at a time: it may be larger than memory."""

import array
import dataclasses
import functools
import math
import os
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from endx_jax.data import reqa
from endx_jax.data.documents import Document, Scalar
from endx_jax.data.readers import columns, comprehension, files, msmarco
from endx_jax.errors import EndxError
from endx_jax.settings import check_choice

# What a folder's corpus is called: in BEIR, MS MARCO and DPR.
IN_FOLDERS = ("corpus.jsonl", msmarco.COLLECTION, "psgs_w100.tsv")

# Where a document stands in its file, for messages, and the document.
Placed = tuple[str, Document]

# The column of the text where none is named, and those of an id.
TEXT_KEY = "text"
ID_KEYS = ("_id", "id")


def read_corpus(
    path: str | os.PathLike, *, pool: str = "", text_column: str = TEXT_KEY, id_column: str = ""
) -> Iterator[Document]:
    """Yields the documents of a corpus in the order of its file.

    What is at the path says how it is read; all but folders also with `.gz`:

    - a folder: BEIR's `corpus.jsonl`, MS MARCO's `collection.tsv` or DPR's `psgs_w100.tsv`;
    - `.jsonl`: an object a line, with `text`, perhaps `_id` or `id` (a string or a whole number) and perhaps `title`;
    - `.csv`, `.tsv`: a table with a header line that names the same columns, quoted as `csv` quotes, as in DPR's
      `psgs_w100.tsv`;
    - `.tsv` of two columns without a header: ids and texts, unquoted, as in MS MARCO's `collection.tsv`. That there is
      no header is seen by a digit in the first id;
    - `.txt`: a text a line; blank lines are passed over;
    - reading-comprehension data (SQuAD's `.json`, MRQA's and Natural Questions' `.jsonl`, a folder of MultiReQA): its
      paragraphs or sentences, each text once, with the ids that `endx evaluate` gives them; these are kept in memory.

    A document without an id has the number of its line. A title is put before the text, with a space between, and kept
    as metadata, as are all further columns and keys with a string, a number or a truth value, also those of an object
    named `metadata`, as BEIR has it; empty, null and nan ones are left out. The title of a paragraph's article is
    metadata only. Texts lose white space at their ends. A text may be empty, as some of published corpora are.

    Args:
      path: a file or a folder.
      pool: of reading comprehension, empty for paragraphs, or `answers` or `sentences` as in `data.pool`; other
        formats have none.
      text_column: the column or key of the text.
      id_column: that of the id; empty: `_id` or `id`, where there is one.

    Raises:
      EndxError: nothing readable is there, or something in it is broken, and the message names file and line. An id
        that stands twice is found when all documents have been read.
    """
    path = os.fspath(path)
    check_choice("pool", pool, ("", *reqa.POOLS))
    if _holds_paragraphs(path):
        return _checked(path, functools.partial(_paragraphs, path, pool))
    file, ending = _found(path)
    if pool:
        raise EndxError(f"{file}: only reading-comprehension data can be cut into {pool}; leave out the pool")
    return _checked(file, functools.partial(FORMATS[ending], file, _Names(text_column, id_column)))


def _holds_paragraphs(path: str) -> bool:
    may = os.path.isdir(path) or path.lower().removesuffix(".gz").endswith((".json", ".jsonl"))
    return may and os.path.exists(path) and comprehension.holds_paragraphs(path)


def _checked(path: str, reader: Callable[[], Iterator[Placed]]) -> Iterator[Document]:
    """The documents; then raises EndxError if there are none, or if two have one id."""
    seen = array.array("q")  # hashes: the ids themselves would take ten times the memory
    for _, document in reader():
        seen.append(hash(document.id))
        yield document
    if not seen:
        raise EndxError(f"{path}: no documents in it")
    ordered = np.sort(np.frombuffer(seen, np.int64))
    repeated = set(ordered[1:][ordered[1:] == ordered[:-1]].tolist())
    if repeated:
        _refuse_equal_ids((where, document.id) for where, document in reader() if hash(document.id) in repeated)


def _refuse_equal_ids(placed: Iterable[tuple[str, str]]) -> None:
    first: dict[str, str] = {}
    for where, name in placed:
        if name in first:
            raise EndxError(f"{where}: the id {name!r} has stood before: {first[name]}; ids must be unique")
        first[name] = where


@dataclasses.dataclass(frozen=True)
class _Names:
    """Which column of a row is what.

    Attributes:
      text: the column of the text.
      identifier: that of the id; empty for the first of `ID_KEYS` that is there, if any.
    """

    text: str
    identifier: str

    def check(self, row: Iterable[str], where: str) -> None:
        """Raises EndxError unless the columns that must be there are among these."""
        for name, flag in ((self.text, "--text-column"), (self.identifier, "--id-column")):
            if name and name not in row:
                known = ", ".join(map(repr, row))
                raise EndxError(f"{where}: no column {name!r} among {known}; name yours with {flag}")

    def document(self, row: dict, number: int, where: str) -> Document:
        """The document of a row that begins on line `number`."""
        self.check(row, where)
        row = dict(row)
        text = files.text(row.pop(self.text), f"{where}: {self.text!r}", may_be_empty=True)
        key = self.identifier or next((key for key in ID_KEYS if key in row), "")
        name = row.pop(key) if key else number
        name = str(name) if type(name) is int else files.text(name, f"{where}: {key!r}")
        title = files.text(row.get("title") or "", f"{where}: 'title'", may_be_empty=True)
        inner = row.pop("metadata", None)
        metadata = _scalars(row, where) | (_scalars(inner, where) if isinstance(inner, dict) else {})
        return Document(name, f"{title} {text}".strip(), metadata)


def _scalars(row: dict, where: str) -> dict[str, Scalar]:
    kept: dict[str, Scalar] = {}
    for key, value in row.items():
        if isinstance(value, str):
            if stripped := files.text(value, f"{where}: {key!r}", may_be_empty=True):
                kept[key] = stripped
        elif isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
            kept[key] = value
    return kept


def _jsonl(path: str, names: _Names) -> Iterator[Placed]:
    for number, row in files.objects(path):
        where = f"{path}, line {number}"
        yield where, names.document(row, number, where)


def _table(path: str, names: _Names, *, delimiter: str) -> Iterator[Placed]:
    header: list[str] = []
    for number, row in columns.rows(path, delimiter):
        where = f"{path}, line {number}"
        if not header:
            header = [name.strip() for name in row]
            names.check(header, where)
            if len(set(header)) < len(header):
                raise EndxError(f"{where}: two columns have one name among {', '.join(map(repr, header))}")
        elif len(row) != len(header):
            raise EndxError(f"{where}: {len(row)} columns where the header has {len(header)}")
        else:
            yield where, names.document(dict(zip(header, row, strict=True)), number, where)


def _tsv(path: str, names: _Names) -> Iterator[Placed]:
    first = next(line for _, line in files.lines(path)).split("\t")
    has_header = len(first) != 2 or names.text != TEXT_KEY or not any(map(str.isdigit, first[0]))
    return _table(path, names, delimiter="\t") if has_header else _ids_and_texts(path)


def _ids_and_texts(path: str) -> Iterator[Placed]:
    for where, name, text in msmarco.ids_and_texts(path):
        yield where, Document(name, text)


def _lines(path: str, names: _Names) -> Iterator[Placed]:
    for number, line in files.lines(path):
        if text := line.strip():
            yield f"{path}, line {number}", Document(str(number), text)


def _paragraphs(path: str, pool: str) -> Iterator[Placed]:
    if pool:
        conversion = reqa.convert(path, pool)
        records = conversion.records
        for name, text, title in zip(records.candidate_ids, records.candidates, conversion.homes, strict=True):
            yield path, Document(name, text, {"title": title})
        return
    titles: dict[str, str] = {}
    for paragraph in comprehension.paragraphs(path):
        titles.setdefault(paragraph.context.strip(), paragraph.article)
    for number, (text, title) in enumerate(titles.items()):
        yield path, Document(f"p{number}", text, {"title": title})


# What a file's name ends in, before an optional .gz, and who reads it.
FORMATS: dict[str, Callable[[str, _Names], Iterator[Placed]]] = {
    ".jsonl": _jsonl,
    ".csv": functools.partial(_table, delimiter=","),
    ".tsv": _tsv,
    ".txt": _lines,
}


def _found(path: str) -> tuple[str, str]:
    """The file that holds the corpus at the path, and its ending."""
    if os.path.isdir(path):
        inside = [os.path.join(path, name + packed) for name in IN_FOLDERS for packed in ("", ".gz")]
        file = next(filter(os.path.isfile, inside), None)
        if file is None:
            raise EndxError(f"{path}: a folder is a corpus by its {' or '.join(IN_FOLDERS)}, and this one has none")
        path = file
    return path, files.ending(path, FORMATS)
