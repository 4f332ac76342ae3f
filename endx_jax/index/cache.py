"""Caches beside an index: arrays in a file that is mapped into memory. Any process may delete it or make it anew.

`INDEX.NAME` begins with a line of JSON that describes the arrays, each of which begins at a multiple of 64 bytes. The
index knows the cache by a random id in its table `about`. Rows of an index are only added, and its deletions are
numbered, so the cache of an earlier state stays right, and what changed since is read from the index. Deleted documents
are overwritten in the cache, and marked. An index that was restored from an older copy does not know a later cache,
which may hold rows that this index never had, or has documents that are marked as deleted: the cache is made anew.
"""

import contextlib
import itertools
import json
import math
import mmap
import os
import pathlib
import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from endx_jax.errors import EndxError, NotWritable, printable
from endx_jax.files import replacing
from endx_jax.index.index_file import PASSAGES, QUESTIONS, changing, store_info
from endx_jax.index.store import Store
from endx_jax.parallel.console import LOG

VERSION = 2
VECTORS, WORDS = "vectors", "words"  # names of the caches
# Arrays of each cache, by passage: int64 row of its document, and uint8 mark of an erasure.
DOCUMENTS, ERASED = f"{PASSAGES}.documents", "erased"
BEGUN, DONE = 1, 2  # marks of deleted documents
# Rows from which an index has caches; fewer are read in no time.
FEWEST = 8192
# Largest share of the rows that may be missing in a cache; then it is made anew.
MISSING = 1 / 32
ALIGNED = 64  # bytes; JAX copies what begins elsewhere
LONGEST = 1 << 16  # bytes of the description

# Errors of a file that is not a cache, or can't be read or written.
BROKEN = (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError)

Shapes = Mapping[str, tuple[np.dtype, tuple[int, ...]]]


class Cache(NamedTuple):
    """Arrays of an index, in a file or in memory.

    Attributes:
      about: what its maker says of it.
      arrays: arrays by name.
      id: random id of a file; empty if the arrays are in memory.
    """

    about: dict[str, Any]
    arrays: dict[str, np.ndarray]
    id: str = ""


def is_behind(kept: int, missing: int) -> bool:
    """Returns true if a cache of `kept` rows lacks so many that it should be made anew."""
    return missing >= FEWEST + MISSING * kept


def open_cache(store: Store, name: str, expected: Mapping[str, Any]) -> Cache | None:
    """Maps a cache of an index; a file that is not one, or says other than expected, is deleted with a line of log."""
    path = _path(store.path, name)
    if not path.is_file():
        return None
    try:
        cache = _mapped(path)
        known = _is_known(store, name, cache) and {**cache.about, **expected} == cache.about
        if known and _erase_deleted(store, cache):
            return cache
    except BROKEN:
        pass
    # To the log, since `endx search` writes its answers to standard output.
    LOG.warning("%s is damaged, or of another version or state of the index: it is made anew", printable(str(path)))
    with contextlib.suppress(OSError):
        path.unlink()
    return None


def make_cache(
    store: Store,
    name: str,
    about: Mapping[str, Any],
    shapes: Shapes,
    fill: Callable[[dict[str, np.ndarray]], None],
    *,
    rows: int,
) -> Cache:
    """Makes a cache of an index of so many `rows`, whose arrays `fill` fills.

    They are in memory if these are few, or the file can't be written.
    """
    path, identity = _path(store.path, name), uuid.uuid4().hex
    shapes = {**shapes, ERASED: (np.dtype(np.uint8), (rows,))}
    listed = {key: [kind.str, shape] for key, (kind, shape) in shapes.items()}
    line = json.dumps({"version": VERSION, "id": identity, "about": about, "arrays": listed}).encode() + b"\n"
    size = _ends(len(line), shapes)[-1]
    # Windows replaces no file that is mapped.
    writable = os.name == "posix" and all(os.access(one, os.W_OK) for one in (path.parent, store.path))
    if rows >= FEWEST and writable and shutil.disk_usage(path.parent).free >= 2 * size:
        with contextlib.suppress(NotWritable, OSError):  # another process may have removed the file
            with replacing(path, "wb") as stream:
                # Pages of a mapped file that the disk has no room for would end the process.
                getattr(os, "posix_fallocate", lambda file, _, size: os.ftruncate(file, size))(stream.fileno(), 0, size)
                file = mmap.mmap(stream.fileno(), size)
                file[: len(line)] = line
                fill(_views(np.frombuffer(file, np.uint8), len(line), shapes))
                file.flush()
                # This file, and not the path, by which another process may have another cache at once.
                arrays = _views(np.asarray(np.memmap(stream, np.uint8, "r", shape=(size,))), len(line), shapes)
            shutil.copymode(store.path, path)
            return Cache(dict(about), arrays, identity)
    memory = np.zeros(size + ALIGNED, np.uint8)
    arrays = _views(memory[-memory.ctypes.data % ALIGNED :], len(line), shapes)
    fill(arrays)
    return Cache(dict(about), arrays)


def adopt(store: Store, name: str, cache: Cache) -> None:
    """Makes an index know a new cache; if the index is locked, the cache is made again at the next opening.

    Documents that were deleted before are overwritten first, as the cache may be of an earlier state of the index.
    """
    if cache.id and not _is_known(store, name, cache):
        _erase_deleted(store, cache)
        with contextlib.suppress(EndxError), changing(store.path) as database:
            store_info(database, **{_key(name): cache.id})


def erase_documents(index: pathlib.Path, content: str, documents: Sequence[int] | np.ndarray) -> None:
    """Overwrites in the caches the embeddings and words of deleted documents, by their rows in the index."""
    for name in (WORDS, VECTORS):
        with contextlib.suppress(*BROKEN):
            cache = _mapped(_path(index, name), "r+")
            if cache.about["content"] == content:
                _erase(cache.arrays, documents)


def _erase(arrays: Mapping[str, np.ndarray], documents: Sequence[int] | np.ndarray) -> None:
    passages, marks = np.flatnonzero(np.isin(arrays[DOCUMENTS], documents)), arrays[ERASED]
    marks[passages] = BEGUN  # before anything is overwritten, which an index that has the documents must not read
    if "words" in arrays:
        starts, counts, words = (arrays[name] for name in ("starts", "counts", "words"))
        of = np.flatnonzero(np.isin(arrays["texts"], passages))
        counts[of] = 0
        ends = np.flatnonzero(words == ord("\n"))
        for n in np.unique(np.searchsorted(starts, of, "right") - 1).tolist():
            if not counts[starts[n] : starts[n + 1]].any():  # no other text has the word
                words[ends[n - 1] + 1 if n else 0 : ends[n]] = 0
    for table, column in itertools.product((PASSAGES, QUESTIONS), ("signs", "embeddings")):
        if f"{table}.{column}" in arrays:
            arrays[f"{table}.{column}"][np.isin(arrays[f"{table}.documents"], documents)] = 0
    marks[passages] = DONE


def _erase_deleted(store: Store, cache: Cache) -> bool:
    """Overwrites deleted documents if a process was killed before; returns false if others were overwritten."""
    documents, marks = cache.arrays[DOCUMENTS], cache.arrays[ERASED]
    erased = np.flatnonzero(marks)  # before the deletions are read, which come first
    of = cache.about.get("deletions", 0), int(documents[0]), int(documents[-1])
    rows = store.rows("SELECT row FROM deleted WHERE number > ? AND row BETWEEN ? AND ?", *of)
    deleted = np.isin(documents, [row for (row,) in rows])
    if (marks[deleted] != DONE).any():
        erase_documents(store.path, cache.about["content"], documents[deleted])
    return bool(deleted[erased].all())


def _path(index: pathlib.Path, name: str) -> pathlib.Path:
    return index.with_name(f"{index.name}.{name}")


def _is_known(store: Store, name: str, cache: Cache) -> bool:
    return [*store.rows("SELECT value FROM about WHERE key = ?", _key(name))] == [(json.dumps(cache.id),)]


def _key(name: str) -> str:
    """Returns the key of a cache's id in the table `about`."""
    return f"cache {name}"


def _mapped(path: pathlib.Path, mode: Literal["r", "r+"] = "r") -> Cache:
    """Maps a file; raises ValueError, or an error about types and keys, if it is no cache."""
    with open(path, "rb" if mode == "r" else "r+b") as stream:  # once: another process may replace the file meanwhile
        description = json.loads(stream.readline(LONGEST))
        begin, size = stream.tell(), os.fstat(stream.fileno()).st_size
        memory = np.asarray(np.memmap(stream, np.uint8, mode, shape=(size,)))
    shapes = {name: (np.dtype(kind), tuple(shape)) for name, (kind, shape) in description["arrays"].items()}
    whole = all(kind.kind in "iuf" for kind, _ in shapes.values()) and size == _ends(begin, shapes)[-1]
    if description["version"] != VERSION or not whole:
        raise ValueError("another version, or cut")
    return Cache(description["about"], _views(memory, begin, shapes), description["id"])


def _ends(begin: int, shapes: Shapes) -> list[int]:
    """Returns where the description and each array end, up to the next multiple of 64 bytes."""
    sizes = [begin, *(kind.itemsize * math.prod(shape) for kind, shape in shapes.values())]
    return [*itertools.accumulate(-(-size // ALIGNED) * ALIGNED for size in sizes)]


def _views(memory: np.ndarray, begin: int, shapes: Shapes) -> dict[str, np.ndarray]:
    """Returns the arrays in memory, uint8 [size], of which the description takes the first `begin` bytes."""
    views = {}
    for (name, (kind, shape)), start in zip(shapes.items(), _ends(begin, shapes), strict=False):
        views[name] = memory[start : start + kind.itemsize * math.prod(shape)].view(kind).reshape(shape)
    return views
