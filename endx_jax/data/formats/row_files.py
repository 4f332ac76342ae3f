"""Reader of the rows of JSONL, JSON, YAML, CSV, TSV, parquet, Arrow IPC and Feather files, one row at a time.

Parquet, Arrow and Feather need pyarrow, of the extra `data`.
"""

import contextlib
import csv
import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from endx_jax import json_files
from endx_jax.data.formats import folders, text_files
from endx_jax.data.formats.text_files import ARROW_ENDINGS, InvalidRows
from endx_jax.errors import EndxError, counted, install

MOST_SCORE = 3e38  # float32, the type of scores in training, has no number much beyond it

# (number of the line or row from 1, its location for messages, values by key)
Row = tuple[int, str, dict[str, Any]]

# Delimiters by file name ending. If several split the header line into equally many fields, the first one is used, and
# a tab of a `.tsv` file always is.
DELIMITERS = {".csv": ",;\t|", ".tsv": "\t,;|"}
SEPARATOR = re.compile(r'"?sep=(.)"?\s*')  # line before the header in files that Excel reads
# Number of rows that are converted to Python objects at once; four times as many are decoded at once.
TOGETHER = 64
WRITTEN = ("date", "time", "timestamp", "decimal")  # types of Arrow that are read as texts
# Maximum columns of a table, since each row is a dict of them.
MOST_COLUMNS = 10_000


class FilePart(NamedTuple):
    """File of a table, or a range of its row groups.

    Attributes:
      file: path of the file.
      groups: first row group and end of the last; None for the whole file.
      before: number of rows of the file before these groups.
    """

    file: str
    groups: tuple[int, int] | None = None
    before: int = 0


def read_rows(
    path: str,
    invalid: InvalidRows | None = None,
    *,
    check: Callable[[list[str], str], object] = lambda names, where: None,
    split: str | None = None,
    part: FilePart | None = None,
) -> Iterator[Row]:
    """Yields the rows of a table: lines of JSONL, items of a JSON list, or rows of CSV, TSV or Arrow.

    Args:
      path: file (a JSON file is a list if it begins with `[`), or folder or pattern of `folders.table_files`.
      invalid: handler of invalid rows; by default they raise EndxError.
      check: function (names in the header line of CSV or TSV, location) that raises EndxError if columns are missing.
      split: split of a folder.
      part: part of the table to read; None for all.

    Yields:
      (line or row number from 1, which continues from one file to the next, and so is unique; `file, line number` for
      messages; values by key). Blank lines, and rows of empty cells, are skipped.

    Raises:
      EndxError: the file is missing or invalid, or two columns of a table have the same name.
    """
    invalid = invalid or InvalidRows(path)
    total = last = 0
    for file, groups, before in [part] if part else map(FilePart, folders.table_files(path, split)):
        ending = text_files.uncompressed(file)[-4:]
        rows: Iterable[Row]
        if file.lower().endswith(ARROW_ENDINGS):
            rows = ((n - before, f"{file}, row {n}", row) for n, row in arrow_rows(file, groups, before))
        elif ending in DELIMITERS:
            rows = _csv_rows(file, _delimiter(file, DELIMITERS[ending]), check, invalid)
        else:
            rows = _json_objects(file, invalid)
        total, last = total + last, 0
        for last, where, row in rows:
            if any(not json_files.is_missing(v) and (not isinstance(v, str) or v.strip()) for v in row.values()):
                yield total + last, where, row


def _json_objects(path: str, invalid: InvalidRows) -> Iterator[Row]:
    if text_files.holds_list(path):
        for number, (first, item) in enumerate(text_files.items(path), start=1):
            yield number, f"{path}, line {first}", item
        return
    if inside := text_files.list_inside(path):
        for number, item in enumerate(inside[1], start=1):
            yield number, f"{path}: {inside[0]}[{number - 1}]", item
        return
    for number, line in text_files.lines(path):
        if line.strip():
            where = f"{path}, line {number}"
            with invalid.row():
                text_files.limit_values(line, where)
                yield number, where, json_files.parse(line.rstrip(), where, dict)


def _csv_rows(path: str, delimiter: str, check: Callable, invalid: InvalidRows) -> Iterator[Row]:
    header: list[str] = []
    for number, fields in fields_of(path, delimiter):
        where = f"{path}, line {number}"
        if not header:
            if SEPARATOR.fullmatch(delimiter.join(fields)):
                continue
            header = [name.strip() for name in fields]
            check(header, where)
            _check_distinct(header, where)
            continue
        with invalid.row():
            if len(fields) != len(header):
                counts = f"{counted(len(fields), 'column')} where the header has {len(header)}"
                raise EndxError(f"{where}: {counts}; put quotes around every text that contains {delimiter!r}")
            yield number, where, dict(zip(header, fields, strict=True))


def _check_distinct(names: list[str], where: str) -> None:
    """Raises EndxError if two columns have the same name and not an empty one."""
    named = [*filter(None, names)]
    if len({*named}) < len(named):
        among = json_files.format_names(names)
        raise EndxError(f"{where}: two columns have the same name among {among}; rename one of them")


def _delimiter(path: str, choices: str) -> str:
    """Returns the delimiter that Excel's line `sep=` names, or that splits the first line into most unquoted fields."""
    if named := SEPARATOR.fullmatch(text_files.first_text_line(path)):
        return named[1]
    line = text_files.first_text_line(path, ignore=r'"[^"]*"')
    return "\t" if choices[0] == "\t" and "\t" in line else max(choices, key=line.count)


def fields_of(path: str, delimiter: str, *, strict: bool = True) -> Iterator[tuple[int, list[str]]]:
    """Yields (number of the first line of the row, its fields); a quoted field may contain newlines.

    Args:
      path: CSV or TSV file.
      delimiter: character between fields.
      strict: true to raise EndxError for quotes that `csv` would not write.

    Raises:
      EndxError: the quotes of a row are wrong, or it is longer than `text_files.MOST` characters.
    """
    start, length, warned = 1, 0, False
    columns: list[int] = []  # number in each line of the row, if its quotes are ignored

    def lines() -> Iterator[str]:
        nonlocal length
        for _, line in text_files.lines(path):
            length += len(line)
            if length > text_files.MOST:
                raise EndxError(f"{path}, row from line {start}: over {text_files.MOST:,} characters; is a quote open?")
            # A comma before a space belongs to prose, not to a table.
            columns.append(1 + line.count(delimiter) - line.count(f"{delimiter} ") * (delimiter != "\t"))
            yield line

    # This limit applies to the process. A long page exceeds the default of 131,072 characters.
    csv.field_size_limit(text_files.MOST)
    hint = 'a field that holds quotes must be quoted, and its quotes doubled: "say ""hi"""'
    reader = csv.reader(lines(), delimiter=delimiter, strict=strict)
    while True:
        start, length = reader.line_num + 1, 0
        columns.clear()
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise EndxError(f"{path}, row from line {start}: {error}; {hint}") from None
        if 1 < len(row) == columns[0] and len(row) in columns[1:] and not warned:
            reason = f"lines {start} to {reader.line_num} are one row in quotes, but look like several rows"
            if strict and delimiter == "\t":
                raise EndxError(f"{path}: {reason}; {hint}")
            warned = True
            text_files.LOG.warning("%s: %s; %s", path, reason, hint)
        if any(map(str.strip, row)):
            yield start, row


def whole_number(text: str, where: str) -> int:
    """Converts a string of at most 18 digits to an integer; raises EndxError, which begins with `where`, for others."""
    if not re.fullmatch(r"-?[0-9]{1,18}", text):
        raise EndxError(f"{where} {text[:40]!r} is not a whole number")
    return int(text)


def file_parts(path: str, split: str | None, rows: int) -> list[FilePart]:
    """Returns parts of a table of about `rows` rows, which can be read independently; text files are one part each."""
    return [FilePart(file, *part) for file in folders.table_files(path, split) for part in row_group_parts(file, rows)]


def arrow_rows(
    file: str, groups: tuple[int, int] | None = None, before: int = 0
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (number from 1, row) of a file; dates, times (in UTC) and decimals are texts.

    Columns of other types that JSON does not have, such as bytes, are left out and named in the log.

    Args:
      file: file with one of `text_files.ARROW_ENDINGS`.
      groups: row groups to read, of those of `row_group_parts`; None for all.
      before: number of rows before these groups.

    Raises:
      EndxError: pyarrow is not installed, the data are invalid, or two columns have the same name.
    """
    number = before
    with _opened(file, groups, lambda: number) as (_, fields, batches):
        _check_distinct([field.name for field in fields], file)
        columns = [n for n, field in enumerate(fields) if _is_json(field.type) or _is(field.type, *WRITTEN)]
        if others := [field.name for n, field in enumerate(fields) if n not in columns]:
            _log_left_out(os.path.dirname(file) or file, json_files.format_names(others))
        for batch in batches:
            batch = batch.select(columns)
            batch.validate(full=True)  # damaged offsets could point anywhere in memory
            batch = batch.from_arrays([*map(_written, batch.columns)], batch.schema.names)
            for start in range(0, batch.num_rows, TOGETHER):
                for row in batch.slice(start, TOGETHER).to_pylist():
                    number += 1
                    yield number, row


@functools.cache
def _log_left_out(folder: str, names: str) -> None:
    """Logs names of columns once for the files of a folder."""
    text_files.LOG.warning("%s: files with columns of types that are not read, such as bytes: %s", folder, names)


def row_group_parts(file: str, size: int) -> list[tuple[tuple[int, int] | None, int]]:
    """Returns (first row group and end of the last, rows before them) of parts of at least `size` rows, if possible.

    Files of other types than parquet are one part, without row groups.
    """
    if not file.lower().endswith(".parquet"):
        return [(None, 0)]
    with _opened(file) as (table, _, _):
        counts = [table.metadata.row_group(n).num_rows for n in range(table.num_row_groups)]
    parts: list[tuple[tuple[int, int] | None, int]] = []
    start, before, rows_of_part = 0, 0, 0
    for end, count in enumerate(counts, 1):
        rows_of_part += count
        if rows_of_part >= size or end == len(counts):
            parts.append(((start, end), before))
            start, before, rows_of_part = end, before + rows_of_part, 0
    return parts or [(None, 0)]


@contextlib.contextmanager
def _opened(
    file: str, groups: tuple[int, int] | None = None, read: Callable[[], int] = lambda: 0
) -> Iterator[tuple[Any, list[Any], Iterable[Any]]]:
    """Context that yields a table, its fields and its batches; errors of pyarrow name the row after `read()` rows."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise EndxError(f"parquet and Arrow data need pyarrow: {install('data')}") from None
    try:
        with contextlib.ExitStack() as stack:
            if file.lower().endswith(".parquet"):
                table = stack.enter_context(pq.ParquetFile(file, pre_buffer=False))
                batches = table.iter_batches(TOGETHER * 4, row_groups=range(*groups) if groups else None)
                schema = table.schema_arrow
            else:
                source = stack.enter_context(pa.memory_map(file))
                is_file = source.read(6) == b"ARROW1"
                source.seek(0)
                table = pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)
                batches = map(table.get_batch, range(table.num_record_batches)) if is_file else table
                schema = table.schema
            if len(schema) > MOST_COLUMNS:
                raise EndxError(f"{file}: {len(schema):,} columns, over {MOST_COLUMNS:,}; write only those with texts")
            yield table, list(schema), batches
    except EndxError:
        raise
    except (pa.ArrowException, OSError, ValueError, OverflowError, RecursionError) as error:
        if not isinstance(error, OSError):
            json_files.check_contents(file)
        reason = str(error).partition("\n")[0][:200] or type(error).__name__
        place = f" after row {read()}" if read() else ""
        raise EndxError(f"{file} can't be read as {os.path.splitext(file)[1]}{place}: {reason}") from None


def _is(kind: Any, *names: str) -> bool:
    """Returns true if an Arrow type is one of these of `pyarrow.types`."""
    import pyarrow as pa

    return any(getattr(pa.types, f"is_{name}")(kind) for name in names)


def _is_json(kind: Any) -> bool:
    """Returns true if JSON can represent the values of an Arrow type."""
    if _is(kind, "struct"):
        return all(_is_json(kind.field(n).type) for n in range(kind.num_fields))
    if _is(kind, "list", "large_list", "fixed_size_list", "dictionary"):
        return _is_json(kind.value_type)
    return _is(kind, "string", "large_string", "string_view", "integer", "floating", "boolean", "null")


def _written(column: Any) -> Any:
    """Returns an Arrow column of one of the types `WRITTEN` as texts; other columns unchanged."""
    import pyarrow as pa

    if _is(column.type, "timestamp"):
        column = column.cast(pa.timestamp(column.type.unit))  # in UTC, since machines may lack tables of time zones
    return column.cast(pa.string()) if _is(column.type, *WRITTEN) else column
