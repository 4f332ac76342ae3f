"""Reading of corpora, one document at a time, since a corpus may be larger than memory."""

import array
import dataclasses
import functools
import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from endx_jax import json_files
from endx_jax.data import reqa
from endx_jax.data.formats import document_files, examples, folders, msmarco, registry, row_files, shards, text_files
from endx_jax.data.formats.columns import ANSWER, ID_KEYS, QUESTION, TEXT, TITLE, called, choose
from endx_jax.data.sets.documents import Document, Scalar, check_id
from endx_jax.data.sets.paragraphs import POOLS
from endx_jax.errors import EndxError, counted
from endx_jax.hub import local_path
from endx_jax.settings import check_choice

# Names of a corpus file in a folder: BEIR, MS MARCO and DPR.
IN_FOLDERS = ("corpus.jsonl", msmarco.COLLECTION, "psgs_w100.tsv")

# (location in the file for messages, document)
Placed = tuple[str, Document]


def read_corpus(
    path: str | os.PathLike,
    *,
    pool: str = "",
    text_column: str = TEXT,
    question_column: str = QUESTION,
    id_column: str | None = None,
    title_column: str = TITLE,
    split: str | None = None,
    say: Callable = str,
) -> Iterator[Document]:
    """Yields the documents of a corpus in file order.

    Known formats, those of text also with `.gz`:

    - a folder: BEIR's `corpus.jsonl`, MS MARCO's `collection.tsv` or DPR's `psgs_w100.tsv`;
    - `.jsonl`: one object per line, with `text`, optional `_id`, `id` or another of `ID_KEYS` (a string or an integer)
      and optional `title`; or `.json`, a list of such objects;
    - `.csv`, `.tsv`: a table with a header line and the same columns, quoted as by `csv`, as in DPR's `psgs_w100.tsv`;
      the delimiter is a comma, semicolon, tab or bar;
    - `.parquet`, `.arrow`, `.feather`, or a `datasets.save_to_disk` folder: a table with the same columns (pyarrow);
    - `.tsv` of two columns without a header: ids and texts, unquoted, as in MS MARCO's `collection.tsv`. The file has
      no header if its first id contains a digit;
    - a table of questions and answers, as training reads it, if it has no column `text`: its distinct answers with
      their known questions, which are kept in memory; those without an id are numbered `d0`, `d1`, ...;
    - `.txt`: one text per line; blank lines are skipped;
    - a document in Markdown, HTML or PDF, or a folder or pattern of such documents and texts: their passages
      (`document_files.passages`); those of a document follow each other and have its id;
    - reading-comprehension data (SQuAD's `.json` or rows, MRQA's and Natural Questions' `.jsonl`, a MultiReQA folder):
      its distinct paragraphs or sentences, with the same ids as in `endx evaluate`; these are kept in memory.

    A folder or pattern may have several such files. The id of a document without one is its line number, counted on
    from file to file. The text begins with the title and a space. The title and all further columns or keys with a
    string, a number or a boolean become metadata, and so do the values of an object named `metadata`, as in BEIR;
    empty, null and nan values are left out. The title of a paragraph's article is only metadata. White space at both
    ends of a text is removed. A text may be empty, as some in published corpora are, if its row has other values.

    Args:
      path: file or folder.
      pool: unit of reading-comprehension data: empty for paragraphs, or `answers` or `sentences` as in `data.pool`.
        Must be empty for other formats.
      text_column: column or key of the text; in pairs, of the answer.
      question_column: column or key of the questions in pairs.
      id_column: column or key of the id; None for the first of `ID_KEYS`, and empty for line numbers.
      title_column: column or key of the title.
      split: split of a `save_to_disk` folder; None if it has only one.
      say: receives a line on the passages of a folder of documents, once all have been read, and one for a table
        whose ids are line numbers.

    Raises:
      EndxError: the corpus can't be read; the message names file and line. Repeated ids are reported after all
        documents have been read.
    """
    path = local_path(os.fspath(path))
    check_choice("pool", pool, ("", *POOLS))
    is_lines = os.path.isfile(path) and text_files.uncompressed(path).endswith(".txt")
    documents = [] if is_lines else document_files.names_in(path)
    if not documents and _holds_paragraphs(path):
        return _checked(path, functools.partial(_paragraphs, path, pool, split))
    file, reader = _found(path, documents, split, say)
    if pool:
        raise EndxError(f"{file}: only reading-comprehension data can be split into {pool}; leave out the pool")
    return _checked(
        file,
        functools.partial(
            reader, file, _Columns(text_column, id_column, title_column, functools.cache(say), question_column)
        ),
    )


def _holds_paragraphs(path: str) -> bool:
    endings = (".json", ".jsonl", *text_files.ARROW_ENDINGS)
    may = os.path.isdir(path) or text_files.uncompressed(path).endswith(endings)
    kinds = (*registry.PARAGRAPH_READERS, registry.LLAMA_INDEX)
    return may and any(folders.files_at(path)) and registry.format_of(path) in kinds


def _checked(path: str, reader: Callable[[], Iterator[Placed]]) -> Iterator[Document]:
    """Yields the documents; then raises EndxError if there are none, or if two have the same id."""
    seen = array.array("q")  # hashes, since ids would take ten times the memory
    for where, document in reader():
        check_id(document.id, f"{where}: the id")
        seen.append(hash(document.name))
        yield document
    if not seen:
        raise EndxError(f"{path}: no documents in it")
    ordered = np.sort(np.frombuffer(seen, np.int64))
    repeated = set(ordered[1:][ordered[1:] == ordered[:-1]].tolist())
    first: dict[str, str] = {}
    for where, document in reader() if repeated else ():
        name = document.name
        if name in first:
            hint = "ids must be unique; name their column with data.id_column=NAME, or none with data.id_column="
            raise EndxError(f"{where}: the id {name[:100]!r} is also that of {first[name]}; {hint}")
        if hash(name) in repeated:
            first[name] = where


@dataclasses.dataclass(frozen=True)
class _Columns:
    """Columns of a table by their arguments of `read_corpus`, and a function that prints each message once."""

    text: str
    id: str | None = None
    title: str = TITLE
    say: Callable = str
    question: str = QUESTION

    @functools.cached_property
    def pairs(self) -> examples.ColumnParser:
        """Parser of rows with a question and an answer."""
        return examples.ColumnParser((self.question, ANSWER if self.text == TEXT else self.text))

    def are_pairs(self, row: Iterable[str]) -> bool:
        """Returns true if a row, or one with these columns, holds a question and an answer."""
        if isinstance(row, dict):
            row = next(iter(self.pairs.asked(row, "")), row)
        try:
            return not (self.text == TEXT and called(TEXT, row)) and bool(self.pairs.choose(row, ""))
        except EndxError:
            return False

    def chosen(self, row: Iterable[str], where: str) -> str:
        """Returns the column of the text; raises EndxError if it or the named column of ids is missing."""
        if self.id:
            choose(self.id, "id", row, where)
        return choose(self.text, TEXT, row, where)

    def check_header(self, header: list[str], where: str) -> None:
        """Raises EndxError unless a header line has the column of the text, and no two columns of the same name."""
        if not self.are_pairs(header):
            self.chosen(header, where)
        if len(set(header)) < len(header):
            raise EndxError(f"{where}: two columns have the same name among {json_files.format_names(header)}")

    def document(self, row: dict, number: int | str, where: str) -> Document:
        """Returns the document of a row; `number` is its id if the row has none."""
        text_key, row = self.chosen(row, where), dict(row)
        text = json_files.as_text(row.pop(text_key), f"{where}: {text_key!r}", may_be_empty=True)
        keys = ID_KEYS if self.id is None else filter(None, [self.id])
        key = next((columns[0] for key in keys if (columns := called(key, row))), "")
        name = row.pop(key) if key else number
        if not key:
            self.say("the corpus has no column of ids: line numbers are the ids; name yours with data.id_column")
        name = json_files.as_text(json_files.identifier(name, f"{where}: {key!r}"), f"{where}: {key!r}")
        title_key = next(iter(called(self.title, row)), self.title)
        given = row.get(title_key)
        title = json_files.as_text(
            "" if json_files.is_missing(given) else given, f"{where}: {title_key!r}", may_be_empty=True
        )
        if title:
            del row[title_key]
            row[TITLE] = title
        inner = row.get("metadata")
        metadata = _scalars(row, where) | (_scalars(inner, where) if isinstance(inner, dict) else {})
        return Document(name, f"{title} {text}".strip(), metadata)


def _scalars(row: dict, where: str) -> dict[str, Scalar]:
    scalars: dict[str, Scalar] = {}
    for key, value in row.items():
        json_files.as_text(key, f"{where}: a key", may_be_empty=True)
        if isinstance(value, str):
            if stripped := json_files.as_text(value, f"{where}: {key!r}", may_be_empty=True):
                scalars[key] = stripped
        elif isinstance(value, int):
            scalars[key] = value if abs(value) < 2**63 else str(value)  # other programs limit numbers to 64 bits
        elif isinstance(value, float) and math.isfinite(value):
            scalars[key] = value
    return scalars


def _rows(path: str, columns: _Columns, *, split: str | None = None) -> Iterator[Placed]:
    rows = row_files.read_rows(path, check=columns.check_header, split=split)
    for first in rows:
        listed = itertools.chain([first], rows)
        if columns.are_pairs(first[2]):
            yield from _answers(listed, columns)
        else:
            yield from ((where, columns.document(row, number, where)) for number, where, row in listed)


def _answers(rows: Iterable[row_files.Row], columns: _Columns) -> Iterator[Placed]:
    """Yields the distinct answers of pairs with their questions, without answers that are marked as wrong."""
    merged: dict[str, tuple[str, Document, dict[str, None]]] = {}
    pairs, other = columns.pairs, 0
    for _, where, row in pairs.labelled(rows):
        names, example = pairs.choose(row, where), pairs(row, where)
        others = {name: row[name] for name in row if name not in (names.question, *names.negatives, *names.labels)}
        for passage in example.right or example.wrong[:1]:
            answer = {**others, names.answer: passage.text}
            document = _Columns(names.answer, columns.id, columns.title).document(answer, f"d{len(merged)}", where)
            _, first, questions = merged.setdefault(document.text, (where, document, {}))
            questions.update({example.question.text: None} if example.right else {})
            other += first.metadata != document.metadata
    if other:
        columns.say(f"repeated answers with other metadata keep those of their first row: {counted(other, 'row')}")
    for where, document, questions in merged.values():
        yield where, dataclasses.replace(document, questions=tuple(questions))


def _tsv(path: str, columns: _Columns, *, split: str | None = None) -> Iterator[Placed]:
    files = shards.files(path, split)
    first = text_files.first_text_line(files[0]).split("\t")
    has_header = len(first) != 2 or columns.text != TEXT or not any(map(str.isdigit, first[0]))
    if has_header:
        return _rows(path, columns, split=split)
    rows = itertools.chain.from_iterable(map(msmarco.ids_and_texts, files))
    return ((where, Document(name, text)) for where, name, text in rows)


def _lines(path: str, columns: _Columns, *, split: str | None = None) -> Iterator[Placed]:
    lines = ((file, number, line) for file in shards.files(path, split) for number, line in text_files.lines(file))
    for count, (file, number, line) in enumerate(lines, start=1):
        if text := line.strip():
            yield f"{file}, line {number}", Document(str(count), text)


def _paragraphs(path: str, pool: str, split: str | None) -> Iterator[Placed]:
    if pool:
        conversion = reqa.convert(path, pool, split=split)
        records = conversion.records
        for name, text, title in zip(records.candidate_ids, records.candidates, conversion.articles, strict=True):
            yield path, Document(name, text, {"title": title})
        return
    if registry.format_of(path) == registry.LLAMA_INDEX:
        yield from ((path, document) for document in registry.read(path).documents)
        return
    titles: dict[str, str] = {}
    for paragraph in registry.read_paragraphs(path, split=split):
        titles.setdefault(paragraph.context.strip(), paragraph.article)
    for number, (text, title) in enumerate(titles.items()):
        yield path, Document(f"p{number}", text, {"title": title})


# Readers by the ending of the name, before an optional .gz.
FORMATS: dict[str, Callable[..., Iterator[Placed]]] = {
    ".jsonl": _rows,
    ".json": _rows,
    ".csv": _rows,
    ".tsv": _tsv,
    ".txt": _lines,
    **dict.fromkeys(text_files.ARROW_ENDINGS, _rows),
}


def _found(
    path: str, documents: list[str], split: str | None, say: Callable
) -> tuple[str, Callable[[str, _Columns], Iterator[Placed]]]:
    """Returns the file or folder of the corpus at a path, which may be one of these documents, and its reader."""
    inside = [os.path.join(path, name + packed) for name in IN_FOLDERS for packed in ("", ".gz")]
    file = next(filter(os.path.isfile, inside), None)
    if file is None and documents:
        return path, lambda folder, _: document_files.passages(folder, documents, say)
    if file is None and os.path.isdir(path) and not shards.holds_shards(path):
        wanted = f"{' or '.join(IN_FOLDERS)}, or files of {', '.join(document_files.ENDINGS)}"
        raise EndxError(f"{path} has no documents or corpus file: expected {wanted}; it has {folders.endings_in(path)}")
    path = file or path
    ending = text_files.ending(shards.files(path, split)[0], FORMATS)
    return path, functools.partial(FORMATS[ending], split=split)
