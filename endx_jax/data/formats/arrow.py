"""Reader of Arrow tables: parquet, Arrow IPC and Feather files; needs pyarrow, of the extra `data`."""

import collections
import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from endx_jax import json_files
from endx_jax.data.formats.text_files import ARROW_ENDINGS
from endx_jax.errors import EndxError, install

# Number of rows that are converted to Python objects at once; four times as many are decoded at once.
TOGETHER = 64
# Maximum columns of a table, since each row is a dict of them.
MOST_COLUMNS = 10_000


def is_table(file: str) -> bool:
    """Returns true for a file with an ending of an Arrow table."""
    return file.lower().endswith(ARROW_ENDINGS)


def arrow_rows(
    file: str, groups: tuple[int, int] | None = None, before: int = 0
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (number from 1, row) of a file, without columns of types that JSON does not have, such as dates.

    Args:
      file: file with one of `text_files.ARROW_ENDINGS`.
      groups: row groups to read, of those of `row_group_parts`; None for all.
      before: number of rows before these groups.

    Raises:
      EndxError: pyarrow is not installed, or the data are invalid.
    """
    number = before
    with _opened(file, groups, lambda: number) as (_, fields, batches):
        counts = collections.Counter(field.name for field in fields)
        columns = [n for n, field in enumerate(fields) if counts[field.name] == 1 and _is_json(field.type)]
        for batch in batches:
            batch = batch.select(columns)
            batch.validate(full=True)  # damaged offsets could point anywhere in memory
            for start in range(0, batch.num_rows, TOGETHER):
                for row in batch.slice(start, TOGETHER).to_pylist():
                    number += 1
                    yield number, row


def row_group_parts(file: str, size: int) -> list[tuple[tuple[int, int] | None, int]]:
    """Returns (first row group and end of the last, rows before them) of parts of at least `size` rows, if possible.

    Feather and Arrow files are one part, without row groups.
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


def _is_json(kind: Any) -> bool:
    """Returns true if JSON can represent the values of an Arrow type."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return all(_is_json(kind.field(n).type) for n in range(kind.num_fields))
    nested = ("list", "large_list", "fixed_size_list", "dictionary")
    if any(getattr(pa.types, f"is_{check}")(kind) for check in nested):
        return _is_json(kind.value_type)
    checks = ("string", "large_string", "string_view", "integer", "floating", "boolean", "null")
    return any(getattr(pa.types, f"is_{check}")(kind) for check in checks)
