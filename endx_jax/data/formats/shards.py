"""Files of tables with several shards: folders of Hugging Face `datasets`, other folders of shards, and patterns."""

import functools
import glob
import os
import pathlib
import re
from typing import NamedTuple

from endx_jax import json_files
from endx_jax.data.formats import arrow, folders, text_files
from endx_jax.data.formats.text_files import ARROW_ENDINGS, chosen_split
from endx_jax.errors import EndxError

# Files that `save_to_disk` writes: STATE for one split, SPLITS for several.
STATE, SPLITS = "state.json", "dataset_dict.json"
# Endings of shards. Files with the ending JSON count only if there are no others, since they often describe data.
ENDINGS, JSON = (*ARROW_ENDINGS, ".jsonl", ".csv", ".tsv"), ".json"
# Files that describe data.
_ABOUT = re.compile(
    r"(?i)(readme|licen[cs]e|notice|changes|changelog|citation)\b(?!.*(jsonl|[ct]sv))|dataset_infos?\.json$"
)
# Files and folders that show that a folder is BEIR's.
BEIR_PARTS = ("corpus.jsonl", "corpus.jsonl.gz", "queries.jsonl", "queries.jsonl.gz", "corpus", "qrels")
# Name of a split in the path of a shard, as in `train-00000-of-00010.parquet`, `data/test-0.parquet` and `dev/0.jsonl`.
SPLIT = re.compile(r"(?:^|/)(train|validation|valid|dev|test)(?=[-_./\d])")


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


def holds_shards(path: str) -> bool:
    """Returns true for a `save_to_disk` folder, another folder of shards, and a pattern such as `data/*.parquet`."""
    if not os.path.isdir(path):
        return not os.path.exists(path) and glob.has_magic(path)
    if any(os.path.isfile(os.path.join(path, name)) for name in (STATE, SPLITS)):
        return True
    return not any(os.path.exists(os.path.join(path, name)) for name in BEIR_PARTS) and bool(_shards(path)[0])


def files(path: str, split: str | None = None) -> list[str]:
    """Returns the files of a table in order; a single file is its own table.

    Args:
      path: file, folder or pattern.
      split: split to read, if the names of the files in a folder name any.

    Raises:
      EndxError: there are no files, no such split, or files of different kinds.
    """
    splits = files_by_split(path)
    paths = splits[chosen_split(list(splits), None if "" in splits else split, path)]
    endings = {os.path.splitext(text_files.uncompressed(file))[1] for file in paths}
    if len(endings) > 1:
        kinds = ", ".join(sorted(endings))
        raise EndxError(f"{path}: files of several kinds, {kinds}; name those of one kind, as in DIR/*.parquet")
    return paths


def file_parts(path: str, split: str | None, rows: int) -> list[FilePart]:
    """Returns parts of a table of about `rows` rows, which can be read independently; text files are one part each."""
    return [
        FilePart(file, *part)
        for file in files(path, split)
        for part in (arrow.row_group_parts(file, rows) if arrow.is_table(file) else [(None, 0)])
    ]


def files_by_split(path: str) -> dict[str, list[str]]:
    """Returns the files of each split of a table, or all under an empty name if there are no splits."""
    if not holds_shards(path):
        return {"": [path]}
    folder = pathlib.Path(path)
    if (folder / SPLITS).is_file():
        names = json_files.list_at(json_files.read_json_file(folder / SPLITS), "splits", str(folder / SPLITS))
        if not names:
            raise EndxError(f"{folder / SPLITS}: no splits; save the data set again")
        return {str(name): _saved(json_files.inside(folder, name, f"{folder / SPLITS}: a split")) for name in names}
    if (folder / STATE).is_file():
        return {"": _saved(folder)}
    if not folder.is_dir():
        paths = folders.files_at(path)
        if not paths:
            raise EndxError(f"{path}: no files match this pattern; correct the path")
        return {"": paths}
    splits: dict[str, list[str]] = {}
    shards, others = _shards(path)
    for file in shards:
        named = SPLIT.search(os.path.relpath(file, path))
        splits.setdefault(named[1] if named else "", []).append(file)
    if len(splits) > 1 and (unnamed := splits.pop("", [])):
        every = os.path.join(path, f"*{os.path.splitext(unnamed[0])[1]}")
        what = "files whose names have no split are left out, since others have one"
        _warn(path, what, tuple(unnamed), f"; to read all of them, give the pattern {every}")
    _warn(path, "files of other types are left out", tuple(others))
    for files in splits.values():
        parts = tuple(dict.fromkeys(map(os.path.dirname, files)))
        _warn(path, "the files of several folders are read as one table", parts[len(parts) < 2 :], "; name one of them")
    return splits


@functools.cache  # a run finds its files several times
def _warn(path: str, what: str, files: tuple[str, ...], remedy: str = "") -> None:
    """Logs what is done with these files, unless there are none."""
    if files:
        text_files.LOG.warning("%s: %s: %d, such as %s%s", path, what, len(files), ", ".join(files[:3]), remedy)


def _shards(folder: str) -> tuple[list[str], list[str]]:
    """Returns the shards in a folder and all below it, and the other files except those that describe data."""
    files = [file for file in folders.files_at(folder) if not _ABOUT.match(os.path.basename(file))]
    there = [file for file in files if os.path.isfile(file) or os.path.islink(file)]
    ending_in = {end: [f for f in there if text_files.uncompressed(f).endswith(end)] for end in (ENDINGS, JSON)}
    shards = ending_in[ENDINGS] or ending_in[JSON]
    return shards, sorted({*files} - {*shards})


def _saved(folder: pathlib.Path) -> list[str]:
    """Returns the files of a `save_to_disk` folder of one split."""
    state = folder / STATE
    entries = json_files.list_at(json_files.read_json_file(state), "_data_files", str(state))
    if not entries:
        raise EndxError(f"{state}: no files; save the data set again")
    names = [json_files.text_at(entry, "filename", str(state)) for entry in entries]
    return [str(json_files.inside(folder, name, f"{state}: a file")) for name in names]
