"""Files of indexes: one SQLite database with the documents of a corpus, their embeddings and the model's identity.

Any SQLite client can read the tables:

    about      one row for each field of `IndexInfo`, its value as JSON
    documents  one row for each document; rows are numbered in the order of addition, and no number is used again
    passages   one row for each text of a document: its passages, numbered from 1, or all of it, with the number 0
    questions  one row for each known question of a document
    tokens     int8 token vectors of each passage [L, E], and their scales [L], of a model of late interaction only
    deleted    one row for each deletion, by which open indexes find out which documents are gone

An embedding is a blob of little-endian float32, float16 or int8. An int8 embedding is multiplied by the column `scale`.
Writers use transactions, so a process that is killed leaves the state before or after a change.
"""

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import sqlite3
import time
import urllib.parse
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np

from endx_jax import json_files
from endx_jax.data.languages import ENGLISH, LANGUAGES
from endx_jax.errors import DiskFull, EndxError, InUse, ReadOnly
from endx_jax.settings import check_choice, from_mapping, require

VERSION = 4
APPLICATION = int.from_bytes(b"endx")  # marks the file for the command `file`
COSINE, INNER_PRODUCT = "cosine", "inner product"
# Data types of stored embeddings by precision. `binary` searches by signs, which are kept in the cache of embeddings.
PRECISIONS = {"float32": "float32", "float16": "float16", "int8": "int8", "binary": "int8"}
REMEDY = "restore it from a copy, or make it again"
# Seconds to wait for another process's transaction.
WAIT = 5.0

# A row's text follows its embedding, so that reading embeddings skips the pages of long texts.
SCHEMA = """
CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE documents (row INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, metadata TEXT NOT NULL);
CREATE TABLE passages (
  row INTEGER PRIMARY KEY AUTOINCREMENT,
  document INTEGER NOT NULL REFERENCES documents ON DELETE CASCADE,
  number INTEGER NOT NULL,
  embedding BLOB NOT NULL,
  scale REAL,
  text TEXT NOT NULL
);
CREATE UNIQUE INDEX passages_of_document ON passages (document, number);
CREATE TABLE questions (
  row INTEGER PRIMARY KEY AUTOINCREMENT,
  document INTEGER NOT NULL REFERENCES documents ON DELETE CASCADE,
  embedding BLOB NOT NULL,
  scale REAL,
  text TEXT NOT NULL
);
CREATE INDEX questions_of_document ON questions (document);
CREATE TABLE tokens (
  passage INTEGER PRIMARY KEY REFERENCES passages ON DELETE CASCADE,
  codes BLOB NOT NULL,
  scales BLOB NOT NULL
);
CREATE TABLE deleted (number INTEGER PRIMARY KEY AUTOINCREMENT, row INTEGER NOT NULL, id TEXT NOT NULL);
"""
PASSAGES, QUESTIONS = "passages", "questions"
FILE = "index.sqlite"  # in the workdir of a run


def metric_of(*, cosine: bool) -> str:
    """Returns the name of the metric."""
    return COSINE if cosine else INNER_PRODUCT


@dataclasses.dataclass(frozen=True)
class IndexInfo:
    """Description of an index.

    Attributes:
      width: E of its embeddings.
      precision: precision of its embeddings: float32, float16, int8, or binary: int8, and one bit for each dimension.
      metric: `cosine` (embeddings have unit norm) or `inner product`. Both are computed as inner products.
      model: model that encoded the documents: at least `name` and `identity` (see `inference.identity`), `step` of a
        run, and `product_dtype`, the data type of its products.
      corpus: source of the documents: `path`; of a run's index, the `part` of it; of `endx encode`, `documents` (their
        number, each passage counted), `sha256` of their contents, and `shard` [number, count] if the index holds one
        shard of the corpus.
      changed: true if documents were added or deleted since the index was written.
      complete: false while the corpus is being encoded.
      content: random id, which changes when the index is written again.
      language: language of the documents, by which BM25 splits them and the questions into words.
    """

    width: int
    precision: str
    metric: str
    model: dict[str, Any]
    corpus: dict[str, Any] = dataclasses.field(default_factory=dict)
    changed: bool = False
    complete: bool = True
    content: str = dataclasses.field(default_factory=lambda: uuid.uuid4().hex)
    language: str = ENGLISH

    @property
    def dtype(self) -> np.dtype:
        """Data type of the stored embeddings."""
        return np.dtype(PRECISIONS[self.precision]).newbyteorder("<")


@contextlib.contextmanager
def sqlite_errors(path: pathlib.Path) -> Iterator[None]:
    """Context that converts errors of SQLite to one-line errors about `path`.

    Raises:
      InUse: another process's transaction lasted longer than the time limit.
      DiskFull: the disk is full.
      ReadOnly: the file, its folder or its disk allows no changes.
      EndxError: the file can't be read or written, or is damaged.
    """
    try:
        yield
    except sqlite3.ProgrammingError:
        raise
    except sqlite3.Error as failure:
        code = getattr(failure, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise InUse(f"{path} is being changed by another process: wait for it or stop it") from None
        if code == sqlite3.SQLITE_FULL:
            raise DiskFull(f"can't write {path}: the disk is full; free some space and repeat the command") from None
        if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_IOERR):
            kind = ReadOnly if code == sqlite3.SQLITE_READONLY else EndxError
            raise kind(f"can't read or write {path}: {failure}; check the file, its folder and the disk") from None
        if code == sqlite3.SQLITE_NOTADB:
            json_files.check_contents(path)
        raise EndxError(f"{path} is not an index or is damaged ({failure}): {REMEDY}") from None


def connect(path: pathlib.Path, mode: str = "rw") -> sqlite3.Connection:
    """Opens a connection in autocommit mode, which several threads may use in turn.

    Args:
      path: path of the database.
      mode: `rw`, which is read-only if the file is; or `rwc`, which creates the file.
    """
    name = urllib.parse.quote(str(path.absolute()))
    database = _connected(f"file:{name}?mode={mode}")
    try:
        # Pages of 16 KB hold several embeddings; the setting applies to new files only.
        with _quickly(database):
            for setting in ("page_size=16384", "trusted_schema=OFF", "secure_delete=ON", "foreign_keys=ON"):
                database.execute(f"PRAGMA {setting}")
            if mode == "rw":
                database.execute("SELECT count(*) FROM sqlite_schema")
    except sqlite3.Error as failure:
        database.close()
        if failure.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
            raise
        # A file in a folder without write permission: nobody can change it. SQLite ignores logs of immutable files.
        for log in (pathlib.Path(f"{path.resolve()}{suffix}") for suffix in ("-wal", "-journal")):
            if log.is_file() and log.stat().st_size:
                missing = f"the changes in its log {log.name} can't be read in a folder without write permission"
                raise EndxError(f"{path}: {missing}; copy both files elsewhere and open the copy") from None
        database = _connected(f"file:{name}?immutable=1")
    return database


def _connected(address: str) -> sqlite3.Connection:
    return sqlite3.connect(address, timeout=WAIT, isolation_level=None, check_same_thread=False, uri=True)


@contextlib.contextmanager
def _quickly(database: sqlite3.Connection) -> Iterator[None]:
    """Context that interrupts statements after a second, for malicious files; others take milliseconds."""
    end = time.monotonic() + 1
    database.set_progress_handler(lambda: time.monotonic() > end, 1_000)
    try:
        yield
    finally:
        database.set_progress_handler(None, 0)


@contextlib.contextmanager
def changing(path: pathlib.Path, *, may_create: bool = False) -> Iterator[sqlite3.Connection]:
    """Context of a write transaction, which is undone if the block raises an error or leaves a wrong description.

    With `may_create` a missing file is created, with its folder. Errors are those of `sqlite_errors` and `info_of`.
    """
    new = may_create and not os.path.lexists(path)
    try:
        if may_create:
            path.parent.mkdir(parents=True, exist_ok=True)
            require(not path.is_dir(), f"can't write {path}: it is a folder; name a file, such as {path / FILE}")
    except OSError as failure:
        raise EndxError(f"can't write {path}: {failure.strerror}") from None
    try:
        with sqlite_errors(path), contextlib.closing(connect(path, "rwc" if may_create else "rw")) as database:
            database.execute("BEGIN IMMEDIATE")
            yield database
            info_of(database, path)
            database.execute("COMMIT")
            with contextlib.suppress(sqlite3.OperationalError):  # deleted texts leave the write-ahead log as well
                database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except BaseException:
        if new and path.is_file() and not path.stat().st_size:
            path.unlink()
        raise


def create(database: sqlite3.Connection, info: IndexInfo) -> None:
    """Creates the tables of an index in an empty database."""
    for statement in SCHEMA.split(";"):
        database.execute(statement)
    database.execute(f"PRAGMA application_id={APPLICATION}")
    database.execute(f"PRAGMA user_version={VERSION}")
    store_info(database, **vars(info))


def store_info(database: sqlite3.Connection, **fields: object) -> None:
    """Stores fields of `IndexInfo`."""
    values = [(key, json.dumps(value, ensure_ascii=False)) for key, value in fields.items()]
    database.executemany("INSERT OR REPLACE INTO about VALUES (?, ?)", values)


def info_of(database: sqlite3.Connection, path: pathlib.Path) -> IndexInfo:
    """Reads the description of an index.

    Raises:
      EndxError: the database is no index, or of another version, or a field is missing or wrong.
    """
    (application,), (version,) = (database.execute(f"PRAGMA {name}").fetchone() for name in _MARKS)
    if application != APPLICATION:
        raise EndxError(f"{path} contains no index: make one with `endx train` or `endx encode`")
    if version != VERSION:
        raise EndxError(f"{path} is an index of version {version}, and this endx_jax reads {VERSION}: make it again")
    with _quickly(database):
        _check_schema(database, path)
        contents = database.execute("SELECT key, value FROM about LIMIT 1000").fetchall()
    stored = {key: json_files.parse(str(value), f"{path}: {key!r}", object) for key, value in contents}
    names = [field.name for field in dataclasses.fields(IndexInfo)]
    info = from_mapping(IndexInfo, {name: json_files.value(stored, name, str(path)) for name in names}, str(path))
    for name, choices in (("precision", PRECISIONS), ("metric", (COSINE, INNER_PRODUCT)), ("language", LANGUAGES)):
        check_choice(f"{path}: {name!r}", getattr(info, name), choices)
    json_files.as_whole(info.width, f"{path}: 'width'", least=1)
    for key in ("name", "identity"):
        json_files.as_text(info.model.get(key, ""), f"{path}: {key!r} of the model", may_be_empty=True)
    if not info.corpus.keys().isdisjoint(("documents", "shard")):
        json_files.as_whole(info.corpus.get("documents"), f"{path}: 'documents' of the corpus", most=2**53)
        match info.corpus.get("shard", [1, 1]):
            case [int(number), int(count)] if 1 <= number <= count:
                pass
            case shard:
                wrong = json_files.shown(shard)
                raise EndxError(f"{path}: 'shard' of the corpus must be its number and the total, not {wrong}")
    return info


_MARKS = ("application_id", "user_version")
_OBJECTS = "SELECT type, name, tbl_name, sql FROM sqlite_schema LIMIT 100"
_NUMBERS = {"documents": "row", PASSAGES: "row", QUESTIONS: "row", "deleted": "number"}
_BEYOND = "< 1", f"> {2**53}"  # after row 2**63 - 1 SQLite reports a full disk


@functools.cache
def _own_objects() -> frozenset[tuple]:
    """Returns type, name, table and SQL of all tables, indexes and triggers that an index may have."""
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        database.executescript(f"{SCHEMA}; ANALYZE")
        return frozenset(database.execute(_OBJECTS))


def _check_schema(database: sqlite3.Connection, path: pathlib.Path) -> None:
    """Raises EndxError if a file has other objects than an index, such as views, or row numbers out of range."""
    objects = database.execute(_OBJECTS).fetchall()
    for kind, name, *_ in (one for one in objects if one not in _own_objects()):
        raise EndxError(f"{path} holds {name!a:.80} ({kind!s:.7}), which no index has: {REMEDY}")
    tables = {name: _NUMBERS[name] for _, name, *_ in objects if name in _NUMBERS}
    ranges = [(table, number, end) for table, number in tables.items() for end in _BEYOND]
    ranges.append(("sqlite_sequence", "seq", _BEYOND[1]))  # of the last row that was ever added
    query = " UNION ALL ".join(f"SELECT {number} FROM {table} WHERE {number} {end}" for table, number, end in ranges)
    for (number,) in database.execute(f"{query} LIMIT 1"):
        raise EndxError(f"{path} is damaged: a row has number {number!a:.80}; {REMEDY}")


def is_new(database: sqlite3.Connection) -> bool:
    """Returns true if a database has no tables."""
    return not database.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]


def check_is_file(path: pathlib.Path) -> None:
    """Raises EndxError if there is no file."""
    if not path.is_file():
        make = f"use {path / FILE}" if (path / FILE).is_file() else "make one with `endx train` or `endx encode`"
        raise EndxError(f"{path} is no file of an index: {make}")
