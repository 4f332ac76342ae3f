"""Files at a path: one file, those that match a pattern such as `docs/*.md`, or all below a folder; shards of a table.

A table may have several files, its shards: in a folder of Hugging Face's `datasets` (`save_to_disk`), in another
folder, where names may tell the split, or by a pattern.
"""

import collections
import functools
import glob
import itertools
import os
import pathlib
import re
from collections.abc import Callable, Sequence

from endx_jax import json_files
from endx_jax.data.formats.text_files import ARROW_ENDINGS, LOG, YAML, uncompressed
from endx_jax.errors import EndxError

# Names that are left out: hidden files and folders, lock files of office programs, and JavaScript packages.
_LEFT_OUT = re.compile(r"\.|~\$|node_modules$")
# Files that `save_to_disk` writes: STATE for one split, SPLITS for several.
STATE, SPLITS = "state.json", "dataset_dict.json"
# Endings of shards. JSON counts only if there are no others, and YAML without either, since they often describe data.
ENDINGS, JSON = (*ARROW_ENDINGS, ".jsonl", ".csv", ".tsv"), ".json"
# Files that describe data.
_ABOUT = re.compile(
    r"(?i)(readme|licen[cs]e|notice|changes|changelog|citation)\b(?!.*(jsonl|[ct]sv))|dataset_infos?\.json$"
)
# Files and folders that show that a folder is BEIR's.
BEIR_PARTS = ("corpus.jsonl", "corpus.jsonl.gz", "queries.jsonl", "queries.jsonl.gz", "corpus", "qrels")
SPLIT_NAMES = ("train", "validation", "valid", "dev", "test")
# Name of a split as a word of the name of a shard or its folder, as in `dev/0.jsonl` and `faq_train-00000.parquet`.
SPLIT = re.compile(rf"(?i)(?:^|[-_.])({'|'.join(SPLIT_NAMES)})(?=[-_.\d]|$)")


def files_at(path: str) -> list[str]:
    """Returns the files at a path, sorted; a folder, or one that matches a pattern, stands for all files below it.

    Each folder is read once, by a path without links if there is one, so circular links do no harm. A link to a
    folder above the path is not followed, and one to a listed file is left out. Unreadable folders are listed as files.
    """
    head, recursive, tail = path.rpartition(f"**{os.sep}")
    if recursive and head[-1:] in ("", os.sep) and not os.path.exists(path):  # `glob` would follow links in circles
        return [name for name in files_at(head or ".") if pathlib.PurePath(name).match(tail or "*")]
    place, found = base(path), [path] if os.path.exists(path) else glob.glob(path)
    if found != [path]:
        found = [n for n in found if not any(map(_LEFT_OUT.match, os.path.relpath(n, place).split(os.sep)))]
    waiting = collections.deque(sorted(found, key=lambda name: (os.path.islink(name), name)))
    seen = {*map(str, pathlib.Path(os.path.realpath(place)).parents)}
    files: list[tuple[bool, str, str]] = []  # (is a link, path, path without links)
    while waiting:
        name = waiting.popleft()  # links come last, so that folders are read by their own paths
        real = os.path.realpath(name)
        try:
            entries = sorted(os.scandir(name), key=lambda entry: entry.name) if real not in seen else []
        except OSError:  # a file, or a folder that can't be read
            files.append((os.path.islink(name), name, real))
            continue
        seen.add(real)
        for entry in entries:
            if _LEFT_OUT.match(entry.name):
                continue
            if entry.is_symlink():
                waiting.append(entry.path)
            elif entry.is_dir():
                waiting.appendleft(entry.path)
            else:
                files.append((False, entry.path, os.path.join(real, entry.name)))
    plain = {real for linked, _, real in files if not linked}
    return sorted(name for linked, name, real in files if not linked or real not in plain)


def base(path: str) -> str:
    """Returns the folder to which the names of the files at a path are relative."""
    if os.path.isdir(path):
        return path
    return os.path.dirname(path if os.path.exists(path) else re.split(r"[*?[]", path, maxsplit=1)[0]) or "."


def endings_in(folder: str) -> str:
    """Returns the number of files of each ending in a folder, as `3 .xlsx, 1 .docx`, for messages."""
    counts = collections.Counter(os.path.splitext(name)[1].lower() for name in files_at(folder))
    listed = [f"{count:,} {ending or 'without an ending'}" for ending, count in counts.most_common(5)]
    return ", ".join(listed) or "no files"


def plain_or_gzip(path: str) -> str:
    """Returns the path, with `.gz` appended if only that file exists."""
    return f"{path}.gz" if not os.path.exists(path) and os.path.exists(f"{path}.gz") else path


def find(folder: str | os.PathLike, names: Sequence[str]) -> list[list[str]]:
    """Returns the files of a folder that match each of `names`, sorted; at least one for each.

    Args:
      folder: folder with the files.
      names: paths inside the folder. A name may contain `*`, and alternatives separated by `|`, of which the first
        that exists is used. Each file may also exist as `.gz`.

    Raises:
      EndxError: the folder or a file is missing.
    """
    folder = os.path.expanduser(folder)
    readable = [name.replace("|", " or ") for name in names]
    if not os.path.isdir(folder):
        raise EndxError(f"{folder}: no such folder; give one that holds {' and '.join(readable)}, or the same as .gz")
    matches = [next(filter(None, (_named(folder, choice) for choice in name.split("|"))), []) for name in names]
    missing = [name for name, files in zip(readable, matches, strict=True) if not files]
    if missing:
        raise EndxError(f"{folder} lacks {' and '.join(missing)}, which may also be there as .gz")
    return matches


def _named(folder: str, name: str) -> list[str]:
    pattern = os.path.join(glob.escape(folder), name)
    plain = glob.glob(pattern)
    packed = [path for path in glob.glob(f"{pattern}.gz") if path.removesuffix(".gz") not in plain]
    return sorted(path for path in plain + packed if os.path.isfile(path))


def chosen_split(splits: Sequence[str], split: str | None, where: str) -> str:
    """Returns the requested split or, without a request, the only one.

    Raises:
      EndxError: there is no such split, or there are several and none was requested.
    """
    if split is None and len(splits) > 1:
        raise EndxError(f"{where}: several splits; choose one with split: {', '.join(splits)}")
    if split is not None and split not in splits:
        raise EndxError(f"{where}: no split {split!r}; choose with split from {', '.join(splits)}")
    return split or splits[0]


def holds_shards(path: str) -> bool:
    """Returns true for a `save_to_disk` folder, another folder of shards, and a pattern such as `data/*.parquet`."""
    if not os.path.isdir(path):
        return not os.path.exists(path) and glob.has_magic(path)
    if any(os.path.isfile(os.path.join(path, name)) for name in (STATE, SPLITS)):
        return True
    return not any(os.path.exists(os.path.join(path, name)) for name in BEIR_PARTS) and bool(_shards(path)[0])


def table_files(path: str, split: str | None = None) -> list[str]:
    """Returns the files of a table in order; a single file is its own table.

    Args:
      path: file, folder or pattern.
      split: split to read, if the names of the files in a folder name any.

    Raises:
      EndxError: there are no files, no such split, or files of different kinds.
    """
    splits = files_by_split(path)
    paths = splits[chosen_split(list(splits), None if "" in splits else split, path)]
    endings = {os.path.splitext(uncompressed(file))[1] for file in paths}
    if len(endings) > 1:
        kinds = ", ".join(sorted(endings))
        raise EndxError(f"{path}: files of several kinds, {kinds}; name those of one kind, as in DIR/*.parquet")
    return paths


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
        paths = files_at(path)
        if not paths:
            raise EndxError(f"{path}: no files match this pattern; correct the path")
        return {"": paths}
    splits: dict[str, list[str]] = {}
    shards, others = _shards(path)
    names = [os.path.relpath(file, path) for file in shards]
    begun, words = ([_split_in(name, find) for name in names] for find in (SPLIT.match, SPLIT.search))
    # A word inside a name may be of a topic, as in `how_to_test.csv`: it counts if every file has one, and they differ.
    named = words if all(words) and len({*words}) > 1 else begun
    for file, split in zip(shards, named, strict=True):
        splits.setdefault(split, []).append(file)
    if len(shards) > 1 and not any(named):
        unused = tuple(itertools.compress(shards, words))
        _warn(path, "files with a split in the name are read with all others", unused, "; begin names with the split")
    if len(splits) > 1 and (unnamed := splits.pop("", [])):
        every = os.path.join(path, f"*{os.path.splitext(unnamed[0])[1]}")
        what = "files whose names have no split are left out, since others have one"
        _warn(path, what, tuple(unnamed), f"; to read all of them, give the pattern {every}")
    _warn(path, "files of other types are left out", tuple(others))
    for files in splits.values():
        parts = tuple(dict.fromkeys(map(os.path.dirname, files)))
        _warn(path, "the files of several folders are read as one table", parts[len(parts) < 2 :], "; name one of them")
    return splits


def _split_in(name: str, find: Callable[[str], re.Match[str] | None]) -> str:
    """Returns the split that a folder is named for, else that in the name of the file or the nearest folder, or ""."""
    *folders, file = pathlib.PurePath(name).parts
    if named := next((folder for folder in folders if folder.lower() in SPLIT_NAMES), ""):
        return named.lower()
    found = filter(None, map(find, (file, *reversed(folders))))
    return next((word[1].lower() for word in found), "")


@functools.cache  # a run finds its files several times
def _warn(path: str, what: str, files: tuple[str, ...], remedy: str = "") -> None:
    """Logs what is done with these files, unless there are none."""
    if files:
        LOG.warning("%s: %s: %d, such as %s%s", path, what, len(files), ", ".join(files[:3]), remedy)


def _shards(folder: str) -> tuple[list[str], list[str]]:
    """Returns the shards in a folder and all below it, and the other files except those that describe data."""
    files = [file for file in files_at(folder) if not _ABOUT.match(os.path.basename(file))]
    there = [file for file in files if os.path.isfile(file) or os.path.islink(file)]
    found = ([file for file in there if uncompressed(file).endswith(kind)] for kind in (ENDINGS, JSON, YAML))
    shards = next(filter(None, found), [])
    return shards, sorted({*files} - {*shards})


def _saved(folder: pathlib.Path) -> list[str]:
    """Returns the files of a `save_to_disk` folder of one split."""
    state = folder / STATE
    entries = json_files.list_at(json_files.read_json_file(state), "_data_files", str(state))
    if not entries:
        raise EndxError(f"{state}: no files; save the data set again")
    names = [json_files.text_at(entry, "filename", str(state)) for entry in entries]
    return [str(json_files.inside(folder, name, f"{state}: a file")) for name in names]
