"""Rows of data files: JSONL, JSON lists, CSV, TSV and Arrow tables, read one row at a time."""

import csv
import re
from collections.abc import Callable, Iterator
from typing import Any

from endx_jax import json_files
from endx_jax.data.readers import arrow, text_files
from endx_jax.data.readers.text_files import InvalidRows
from endx_jax.errors import EndxError

# (number of the line or row from 1, its place for messages, values by key)
Row = tuple[int, str, dict[str, Any]]

# Known delimiters by file name ending. If several split the header line into equally many fields, the first wins.
DELIMITERS = {".csv": ",;\t|", ".tsv": "\t,;|"}


def objects(path: str, invalid: InvalidRows | None = None, *, split: str | None = None) -> Iterator[Row]:
    """Yields the objects of a file: lines of JSONL, items of a JSON list, or rows of an Arrow table.

    Args:
      path: a JSON file, which is a list if it begins with `[`, or a table that `arrow.rows` reads.
      invalid: handles lines that are not an object; by default they are refused.
      split: split of a `save_to_disk` folder.

    Yields:
      (line or row number from 1, `path, line number` for messages, object). Blank lines are skipped.

    Raises:
      EndxError: as `text_files.lines`, `text_files.items` and `arrow.rows`.
    """
    if arrow.holds_table(path):
        for number, row in arrow.rows(path, split):
            yield number, f"{path}, row {number}", row
        return
    if text_files.head(path, 1000).lstrip().startswith("["):
        for number, item in text_files.items(path):
            where = f"{path}, line {number}"
            yield number, where, json_files.mapped(item, f"{where}: an item of the list")
        return
    invalid = invalid or InvalidRows(path)
    for number, line in text_files.lines(path):
        if line.strip():
            where = f"{path}, line {number}"
            found: list[dict] = []
            with invalid.row():
                text_files.check_values(line, where)
                found = [json_files.parse(line.rstrip(), where, dict)]
            yield from ((number, where, row) for row in found)


def rows(
    path: str, check: Callable[[list[str], str], object], invalid: InvalidRows, *, split: str | None = None
) -> Iterator[Row]:
    """Yields the rows of a table: those of a `.csv` or `.tsv` file with a header line, or those of `objects`.

    Args:
      path: the file or folder.
      check: called with the names in the header line and its place; raises EndxError if columns are missing.
      invalid: handles invalid rows.
      split: split of a `save_to_disk` folder.

    Raises:
      EndxError: the file is broken.
    """
    ending = path.lower().removesuffix(".gz")[-4:]
    if ending not in DELIMITERS:
        yield from objects(path, invalid, split=split)
        return
    header: list[str] = []
    for number, fields in fields_of(path, _delimiter(path, DELIMITERS[ending])):
        where = f"{path}, line {number}"
        if not header:
            header = [name.strip() for name in fields]
            check(header, where)
            continue
        with invalid.row():
            if len(fields) != len(header):
                raise EndxError(f"{where}: {len(fields)} columns where the header has {len(header)}")
        if len(fields) == len(header):
            yield number, where, dict(zip(header, fields, strict=True))


def _delimiter(path: str, choices: str) -> str:
    """Returns the delimiter that splits the first line of a file into most fields; quoted fields hold none."""
    first = re.sub(r'"[^"]*"', "", text_files.head(path).lstrip("\r\n").partition("\n")[0])
    return max(choices, key=first.count)


def fields_of(path: str, delimiter: str, *, strict: bool = True) -> Iterator[tuple[int, list[str]]]:
    """Yields (line number at which the row starts, its fields); a quoted field may hold newlines.

    Args:
      path: the file.
      delimiter: the character between fields.
      strict: whether to refuse quotes that `csv` would not write so.

    Raises:
      EndxError: the quotes of a row are wrong, or it is longer than `text_files.MOST` characters.
    """
    start, length = 1, 0

    def lines() -> Iterator[str]:
        nonlocal length
        for _, line in text_files.lines(path):
            length += len(line)
            if length > text_files.MOST:
                raise EndxError(f"{path}, row from line {start}: over {text_files.MOST:,} characters; is a quote open?")
            yield line

    # A limit of the process. The default of 131,072 characters is less than a long page.
    csv.field_size_limit(text_files.MOST)
    reader = csv.reader(lines(), delimiter=delimiter, strict=strict)
    while True:
        start, length = reader.line_num + 1, 0
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            hint = 'a field that holds quotes must be quoted, and its quotes doubled: "say ""hi"""'
            raise EndxError(f"{path}, row from line {start}: {error}; {hint}") from None
        if row:
            yield start, row


def whole_number(text: str, where: str) -> int:
    """Returns the whole number in a text of at most 18 digits; `where` begins the message that refuses others."""
    if not re.fullmatch(r"-?[0-9]{1,18}", text):
        raise EndxError(f"{where} {text[:40]!r} is not a whole number")
    return int(text)
