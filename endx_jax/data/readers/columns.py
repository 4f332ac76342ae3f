"""One question and one answer a row: JSONL, CSV and TSV."""

import csv
from collections.abc import Iterator

from endx_jax.data.readers import files
from endx_jax.data.records import RetrievalSet
from endx_jax.errors import EndxError


def read_jsonl(path: str, columns: tuple[str, str]) -> RetrievalSet:
    """Reads an object a line; `columns` are the keys of question and answer, further keys are ignored."""
    return _records(path, _jsonl_pairs(path, columns))


def read_table(path: str, columns: tuple[str, str], delimiter: str) -> RetrievalSet:
    """Reads a table with a header line that names its columns, quoted as `csv` quotes; further columns are ignored."""
    return _records(path, _table_pairs(path, columns, delimiter))


def _records(path: str, pairs: Iterator[tuple[str, str]]) -> RetrievalSet:
    records = RetrievalSet.from_pairs(pairs)
    if not records.questions:
        raise EndxError(f"{path}: no questions in the file")
    return records


def _jsonl_pairs(path: str, columns: tuple[str, str]) -> Iterator[tuple[str, str]]:
    for number, row in files.objects(path):
        where = f"{path}, line {number}"
        _require(columns, list(row), where)
        question, answer = (files.text(row[name], f"{where}: {name!r}") for name in columns)
        yield question, answer


def _table_pairs(path: str, columns: tuple[str, str], delimiter: str) -> Iterator[tuple[str, str]]:
    header: list[str] = []
    for number, row in rows(path, delimiter):
        where = f"{path}, line {number}"
        if not header:
            header = [name.strip() for name in row]
            _require(columns, header, where)
            places = [header.index(name) for name in columns]
        elif len(row) != len(header):
            raise EndxError(f"{where}: {len(row)} columns where the header has {len(header)}")
        else:
            question, answer = (files.text(row[place], f"{where}: {header[place]!r}") for place in places)
            yield question, answer


def rows(path: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yields (the line on which the row starts, its fields); a quoted field may hold newlines."""
    reader = csv.reader((line for _, line in files.lines(path)), delimiter=delimiter, strict=True)
    while True:
        start = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            hint = 'a field that holds quotes must be quoted, and its quotes doubled: "say ""hi"""'
            raise EndxError(f"{path}, row from line {start}: {error}; {hint}") from None
        if row:
            yield start, row


def _require(columns: tuple[str, str], known: list[str], where: str) -> None:
    for name in columns:
        if known.count(name) != 1:
            raise EndxError(
                f"{where}: {'no' if name not in known else 'more than one'} column {name!r} among "
                f"{', '.join(map(repr, known))}; name yours with data.question_column and data.answer_column"
            )
