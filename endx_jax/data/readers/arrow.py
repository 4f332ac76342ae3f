"""Reader of Arrow tables: parquet, Arrow IPC and Feather files, and `datasets.save_to_disk` folders.

It needs pyarrow, an optional dependency: `pip install "endx_jax[data]"`.
"""

import contextlib
import os
import pathlib
from collections.abc import Iterator
from typing import Any

from endx_jax import json_files
from endx_jax.data.readers.text_files import ARROW_ENDINGS, chosen_split
from endx_jax.errors import EndxError

# Number of rows that are converted to Python objects at once; four times as many are decoded at once.
TOGETHER = 64
# Files that `save_to_disk` writes: STATE for one split, SPLITS for several.
STATE, SPLITS = "state.json", "dataset_dict.json"


def holds_table(path: str) -> bool:
    """Returns true for a file with an ending of an Arrow table, and for a `save_to_disk` folder."""
    if os.path.isdir(path):
        return any(os.path.isfile(os.path.join(path, name)) for name in (STATE, SPLITS))
    return path.lower().endswith(ARROW_ENDINGS)


def rows(path: str, split: str | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (number from 1, row) of a table, without columns of types that JSON does not have, such as dates.

    Args:
      path: file with one of `text_files.ARROW_ENDINGS`, or a `save_to_disk` folder.
      split: split of the folder; None if it has only one.

    Raises:
      EndxError: pyarrow is not installed, or the data are invalid.
    """
    number = 0
    for file in _files(path, split):
        with _refusing(file):
            for batch in _batches(file):
                kept = [name for name in batch.schema.names if batch.schema.names.count(name) == 1]
                kept = [name for name in kept if _is_json(batch.schema.field(name).type)]
                batch = batch.select(kept)
                batch.validate(full=True)  # damaged offsets could point anywhere in memory
                for start in range(0, batch.num_rows, TOGETHER):
                    for row in batch.slice(start, TOGETHER).to_pylist():
                        number += 1
                        yield number, row


def kinds(path: str) -> dict[str, str]:
    """Returns the first character of each column's values in JSON: `[`, `{`, or empty for others."""
    import_pyarrow()
    import pyarrow as pa

    file = _files(path, next(iter(_splits(pathlib.Path(path))), None))[0]
    with _refusing(file):
        schema = next((batch.schema for batch in _batches(file)), pa.schema([]))
        return {
            field.name: "[" if _is_list(field.type) else "{" if pa.types.is_struct(field.type) else ""
            for field in schema
        }


def import_pyarrow() -> None:
    """Imports pyarrow; raises EndxError if it is not installed."""
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise EndxError('parquet and Arrow data need pyarrow: pip install "endx_jax[data]"') from None


@contextlib.contextmanager
def _refusing(file: str) -> Iterator[None]:
    import_pyarrow()
    import pyarrow as pa

    try:
        yield
    except EndxError:
        raise
    except (pa.ArrowException, OSError, ValueError, OverflowError, RecursionError) as error:
        reason = str(error).partition("\n")[0][:200] or type(error).__name__
        raise EndxError(f"{file} can't be read as {os.path.splitext(file)[1]}: {reason}") from None


def _batches(file: str) -> Iterator[Any]:
    import pyarrow as pa

    if file.lower().endswith(".parquet"):
        import pyarrow.parquet as pq

        with pq.ParquetFile(file, pre_buffer=False) as table:
            yield from table.iter_batches(TOGETHER * 4)
        return
    with pa.memory_map(file) as source:
        is_file = source.read(6) == b"ARROW1"
        source.seek(0)
        if is_file:
            found = pa.ipc.open_file(source)
            yield from (found.get_batch(n) for n in range(found.num_record_batches))
        else:
            yield from pa.ipc.open_stream(source)


def _files(path: str, split: str | None) -> list[str]:
    """Returns the files of a table in order."""
    if not os.path.isdir(path):
        return [path]
    folder = pathlib.Path(path)
    if splits := _splits(folder):
        folder = folder / _inside(chosen_split(splits, split, path), folder / SPLITS)
    state = folder / STATE
    entries = json_files.list_at(json_files.read(state), "_data_files", str(state))
    if not entries:
        raise EndxError(f"{state}: no files")
    return [str(folder / _inside(json_files.text_at(entry, "filename", str(state)), state)) for entry in entries]


def _splits(folder: pathlib.Path) -> list[str]:
    """Returns the splits of a folder; none if it holds one table."""
    file = folder / SPLITS
    if not file.is_file():
        return []
    names = json_files.list_at(json_files.read(file), "splits", str(file))
    if not names:
        raise EndxError(f"{file}: no splits")
    return [json_files.text(name, f"{file}: a split") for name in names]


def _inside(name: str, where: pathlib.Path) -> str:
    if name != os.path.basename(name) or name in (".", "..") or "\0" in name or len(name.encode()) > 255:
        raise EndxError(f"{where}: {name[:100]!r} is not the name of a file in the folder")
    return name


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _is_json(kind: Any) -> bool:
    """Returns true if JSON can represent the values of an Arrow type."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return all(_is_json(kind.field(n).type) for n in range(kind.num_fields))
    if _is_list(kind) or pa.types.is_dictionary(kind):
        return _is_json(kind.value_type)
    checks = ("string", "large_string", "string_view", "integer", "floating", "boolean", "null")
    return any(getattr(pa.types, f"is_{check}")(kind) for check in checks)
