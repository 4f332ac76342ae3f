"""Files of tables with several shards: folders of Hugging Face `datasets`, other folders of shards, and patterns."""

import functools
import glob
import os
import pathlib
import re
from collections.abc import Iterator
from typing import NamedTuple

from endx_jax import json_files
from endx_jax.data.readers import arrow, text_files
from endx_jax.data.readers.text_files import ARROW_ENDINGS, chosen_split
from endx_jax.errors import EndxError

# Files that `save_to_disk` writes: STATE for one split, SPLITS for several.
STATE, SPLITS = "state.json", "dataset_dict.json"
# Endings of shards; `.json` files may be SQuAD's.
ENDINGS = (*ARROW_ENDINGS, ".jsonl", ".csv", ".tsv")
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
    return not any(os.path.exists(os.path.join(path, name)) for name in BEIR_PARTS) and any(_inside_of(path))


def files(path: str, split: str | None = None) -> list[str]:
    """Returns the files of a table in order; a single file is its own table.

    Args:
      path: file, folder or pattern.
      split: split to read, if the names of the files in a folder name any.

    Raises:
      EndxError: there are no files, no such split, or files of different kinds.
    """
    if not holds_shards(path):
        return [path]
    splits = _splits(path)
    paths = splits[chosen_split(list(splits), None if "" in splits else split, path)]
    endings = {os.path.splitext(text_files.uncompressed(file))[1] for file in paths}
    if len(endings) > 1:
        kinds = ", ".join(sorted(endings))
        raise EndxError(f"{path}: files of several kinds, {kinds}; name those of one kind, as in DIR/*.parquet")
    return paths


def first_split(path: str) -> list[str]:
    """Returns the files of the first split of a table."""
    return next(iter(_splits(path).values())) if holds_shards(path) else [path]


def file_parts(path: str, split: str | None, rows: int) -> list[FilePart]:
    """Returns parts of a table of about `rows` rows, which can be read independently; text files are one part each."""
    return [
        FilePart(file, *part)
        for file in files(path, split)
        for part in (arrow.row_group_parts(file, rows) if arrow.is_table(file) else [(None, 0)])
    ]


def _splits(path: str) -> dict[str, list[str]]:
    """Returns the files of each split of a folder or pattern, or all under an empty name if there are no splits."""
    folder = pathlib.Path(path)
    if (folder / SPLITS).is_file():
        names = json_files.list_at(json_files.read_json_file(folder / SPLITS), "splits", str(folder / SPLITS))
        if not names:
            raise EndxError(f"{folder / SPLITS}: no splits; save the data set again")
        names = [json_files.as_text(name, f"{folder / SPLITS}: a split") for name in names]
        return {name: _saved(folder / _inside(name, folder / SPLITS)) for name in names}
    if (folder / STATE).is_file():
        return {"": _saved(folder)}
    if not folder.is_dir():
        paths = sorted(glob.glob(path, recursive=True))
        if not paths:
            raise EndxError(f"{path}: no files match this pattern; correct the path")
        return {"": paths}
    splits: dict[str, list[str]] = {}
    for name in sorted(_inside_of(path)):
        named = SPLIT.search(name)
        splits.setdefault(named[1] if named else "", []).append(os.path.join(path, name))
    if len(splits) > 1 and (unnamed := splits.pop("", [])):
        _warn_of_left_out(path, len(unnamed), unnamed[0])
    return splits


@functools.cache  # a run finds its files several times
def _warn_of_left_out(path: str, count: int, first: str) -> None:
    every = os.path.join(path, f"*{os.path.splitext(first)[1]}")
    what = f"files whose names have no split are left out beside those that have one: {count}, such as {first}"
    text_files.LOG.warning("%s: %s; to read all of them, give the pattern %s", path, what, every)


def _inside_of(folder: str) -> Iterator[str]:
    """Yields the names of the shards in a folder and all below it, each folder once, as links may form a circle."""
    seen = {os.path.realpath(folder)}
    for place, folders, names in os.walk(folder, followlinks=True):
        below = {os.path.realpath(os.path.join(place, name)): name for name in folders if not name.startswith(".")}
        folders[:] = sorted(name for real, name in below.items() if real not in seen)
        seen |= below.keys()
        for name in names:
            path = os.path.join(place, name)
            if not name.startswith(".") and text_files.uncompressed(name).endswith(ENDINGS) and os.path.isfile(path):
                yield os.path.relpath(path, folder)


def _saved(folder: pathlib.Path) -> list[str]:
    """Returns the files of a `save_to_disk` folder of one split."""
    state = folder / STATE
    entries = json_files.list_at(json_files.read_json_file(state), "_data_files", str(state))
    if not entries:
        raise EndxError(f"{state}: no files; save the data set again")
    return [str(folder / _inside(json_files.text_at(entry, "filename", str(state)), state)) for entry in entries]


def _inside(name: str, where: pathlib.Path) -> str:
    if name != os.path.basename(name) or name in (".", "..") or "\0" in name or len(name.encode()) > 255:
        raise EndxError(f"{where}: {name[:100]!r} is not the name of a file in the folder")
    return name
