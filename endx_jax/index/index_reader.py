"""Reader of an index file: embeddings, texts and documents, for several threads."""

import contextlib
import json
import pathlib
import sqlite3
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from endx_jax import json_files
from endx_jax.data.sets.documents import Document
from endx_jax.errors import EndxError
from endx_jax.index.index_file import (
    INSERT,
    INSERT_PASSAGE,
    INSERT_QUESTION,
    INSERT_TOKENS,
    LISTED,
    PASSAGES,
    REMEDY,
    STEP,
    StoredEmbeddings,
    connect,
    count_passages,
    info_of,
    last_document,
    sqlite_errors,
)
from endx_jax.numerics import Quantized


class IndexReader:
    """Open index file, which several threads may read.

    Attributes:
      path: path of the file.
      info: description of the index when it was opened or last read.
    """

    def __init__(self, path: pathlib.Path):
        """Opens a finished index.

        Raises:
          EndxError: there is none, or it is damaged.
        """
        self.path, self._lock = path, threading.RLock()
        check_is_file(path)
        with sqlite_errors(path):
            self._database = connect(path)
            weakref.finalize(self, self._database.close)
            with contextlib.suppress(sqlite3.OperationalError):  # of files or file systems that do not allow it
                self._database.execute("PRAGMA journal_mode=WAL")  # lets processes read while another one writes
            self._database.execute("PRAGMA query_only=ON")
            self.info = info_of(self._database, path)
        if not self.info.complete:
            raise EndxError(f"{path} is not finished: repeat the `endx encode` command that began it")

    def version(self) -> int:
        """Returns a number that changes when another connection changes the index."""
        return self._rows("PRAGMA data_version")[0][0]

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Context in which all reads of this thread see one state, and other threads wait."""
        with self._lock, sqlite_errors(self.path):
            self._database.execute("BEGIN")
            try:
                self.info = info_of(self._database, self.path)
                yield
            finally:
                self._database.execute("ROLLBACK")

    def count(self, table: str = PASSAGES) -> int:
        """Returns the number of passages, or of known questions."""
        return self._rows(f"SELECT count(*) FROM {table}")[0][0]

    def count_deletions(self) -> int:
        """Returns the number of the last deletion."""
        return self._rows("SELECT coalesce(max(number), 0) FROM deleted")[0][0]

    def deleted(self, after: int = 0) -> tuple[int, list[tuple[int, str]]]:
        """Returns the number of deletions, and row and id of those after the first `after`."""
        deletions = self._rows("SELECT number, row, id FROM deleted WHERE number > ? ORDER BY number", after)
        if not all(type(row) is int and type(name) is str for _, row, name in deletions):
            raise EndxError(f"{self.path} is damaged: a deletion names no document; {REMEDY}")
        return deletions[-1][0] if deletions else after, [(row, name) for _, row, name in deletions]

    def embeddings(self, after: int = 0, table: str = PASSAGES) -> Iterator[StoredEmbeddings]:
        """Yields the embeddings of all rows of a table above `after`, some thousand at a time."""
        query = f"SELECT row, embedding, scale, document FROM {table} WHERE row > ? ORDER BY row"
        with self._lock, sqlite_errors(self.path):
            cursor = self._database.execute(query, [after])
            while rows := cursor.fetchmany(STEP):
                yield self._stored(rows)

    def embeddings_of(self, rows: Sequence[int]) -> Any:
        """Returns embeddings of n rows [n, E] in their order, or token vectors, objects [n]; rows may occur twice."""
        if self.by_token:
            vectors = self.token_vectors(rows)
            return np.fromiter((vectors[row] for row in rows), object, len(rows))
        columns: dict[int, tuple] = {}
        for start in range(0, len(rows), STEP):
            query = f"SELECT row, embedding, scale, document FROM passages WHERE row IN {LISTED}"
            columns |= {values[0]: values for values in self._rows(query, json.dumps(rows[start : start + STEP]))}
        kept = self._stored([columns[row] for row in rows]) if rows else self.no_embeddings()
        return kept.embeddings if kept.scales is None else Quantized(kept.embeddings, kept.scales)

    @property
    def by_token(self) -> bool:
        """True if the file holds token vectors."""
        return bool(self._rows("SELECT 1 FROM tokens LIMIT 1"))

    def token_vectors(self, rows: Sequence[int]) -> dict[int, Quantized]:
        """Returns the token vectors [L, E] of rows, in their order; rows whose document was deleted are omitted."""
        query = f"SELECT row, codes, scales FROM passages LEFT JOIN tokens ON passage = row WHERE row IN {LISTED}"
        width, found = self.info.width, {}
        for row, codes, scales in self._rows(query, json.dumps(rows)):
            valid = type(codes) is type(scales) is bytes and len(codes) * 4 == len(scales) * width
            if not valid or not _are_scales(np.frombuffer(scales, "<f4")):
                raise EndxError(f"{self.path} is damaged: a document has no token vectors of width {width}; {REMEDY}")
            found[row] = Quantized(np.frombuffer(codes, np.int8).reshape(-1, width), np.frombuffer(scales, "<f4"))
        return {row: found[row] for row in rows if row in found}

    def no_embeddings(self) -> StoredEmbeddings:
        """Returns arrays of no rows."""
        scales = np.zeros(0, np.float32) if self.info.precision == "int8" else None
        none = np.zeros(0, np.int64)
        vectors = np.zeros((0, self.info.width), self.info.dtype)
        return StoredEmbeddings(none, vectors, scales, none)

    def _stored(self, columns: Sequence[tuple[int, object, object, object]]) -> StoredEmbeddings:
        """Checks rows, embeddings and scales as the file has them."""
        rows, blobs, scales, documents = zip(*columns, strict=True)
        size = self.info.dtype.itemsize * self.info.width
        if any(type(blob) is not bytes or len(blob) != size for blob in blobs):
            raise EndxError(f"{self.path} is damaged: an embedding does not have {size} bytes; {REMEDY}")
        quantized = self.info.precision == "int8"
        if quantized and not all(type(scale) is float for scale in scales):
            raise EndxError(f"{self.path} is damaged: an embedding has no scale; {REMEDY}")
        if not all(type(document) is int for document in documents):
            raise EndxError(f"{self.path} is damaged: an embedding has no document; {REMEDY}")
        embeddings = np.frombuffer(b"".join(blobs), self.info.dtype).reshape(-1, self.info.width)
        floats = np.array(scales, np.float32) if quantized else embeddings
        if not (_are_scales(floats) if quantized else np.isfinite(floats).all()):
            raise EndxError(
                f"{self.path} is damaged: an embedding contains nan, infinity or a negative scale; {REMEDY}"
            )
        return StoredEmbeddings(
            np.array(rows, np.int64),
            embeddings,
            floats if quantized else None,
            np.array(documents, np.int64),
        )

    def texts(self) -> Iterator[tuple[int, str]]:
        """Yields row and text of all passages."""
        yield from self._stream("SELECT row, text FROM passages ORDER BY row")

    def copy_to(self, database: sqlite3.Connection) -> None:
        """Inserts all contents of this index, which must be unchanged, with rows from 1.

        Its first passages may continue the last document of the database.
        """
        before, (row, last) = count_passages(database), last_document(database)
        continued = self._rows("SELECT count(*) FROM documents WHERE row = 1 AND id = ?", last)[0][0]
        row -= continued
        for insert, query in (
            (INSERT, f"SELECT id, metadata FROM documents WHERE row > {continued} ORDER BY row"),
            (
                INSERT_PASSAGE,
                f"SELECT document + {row}, number, embedding, scale, text FROM passages ORDER BY row",
            ),
            (INSERT_QUESTION, f"SELECT document + {row}, embedding, scale, text FROM questions ORDER BY row"),
            (INSERT_TOKENS, f"SELECT passage + {before}, codes, scales FROM tokens ORDER BY passage"),
        ):
            database.executemany(insert, self._stream(query))

    def documents(self, rows: Sequence[int]) -> dict[int, Document]:
        """Returns the passages of rows, with their document's metadata; rows whose document was deleted are omitted."""
        documents: dict[int, Document] = {}
        for start in range(0, len(rows), STEP):
            some = json.dumps(rows[start : start + STEP])
            known: dict[int, list[object]] = {}
            query = f"SELECT document FROM passages WHERE row IN {LISTED}"
            query = f"SELECT document, text FROM questions WHERE document IN ({query}) ORDER BY row"
            for document, text in self._rows(query, some):
                known.setdefault(document, []).append(text)
            query = "SELECT passages.row, document, id, text, metadata, number FROM passages"
            query += f" JOIN documents ON documents.row = document WHERE passages.row IN {LISTED} ORDER BY passages.row"
            listed = self._rows(query, some)
            documents |= {row: self._document(known.get(of, []), *fields) for row, of, *fields in listed}
        return documents

    def passages_of(self, identifier: str) -> list[int]:
        """Returns the rows of the passages of a document, in order; none if no document has the id."""
        (row,) = self.rows_of([identifier]).values() or (0,)
        return [row for (row,) in self._rows("SELECT row FROM passages WHERE document = ? ORDER BY row", row)]

    def rows_of(self, ids: Sequence[str]) -> dict[str, int]:
        """Returns the rows of the documents with these ids; ids without a document are omitted."""
        found, wanted = self._rows(f"SELECT id, row FROM documents WHERE id IN {LISTED}", json.dumps(ids)), set(ids)
        return {name: row for name, row in found if name in wanted}

    def rows_where(self, condition: str, values: Sequence[object]) -> np.ndarray:
        """Returns the rows, int64 [n], of documents that meet a condition of `filters.condition`."""
        return np.array(self._rows(f"SELECT row FROM documents WHERE {condition}", *values), np.int64).reshape(-1)

    def _document(
        self, questions: Sequence[object], identifier: object, text: object, metadata: object, number: object
    ) -> Document:
        texts = all(isinstance(field, str) for field in (identifier, text, metadata, *questions))
        if not texts or not isinstance(number, int):
            raise EndxError(f"{self.path} is damaged: document {json_files.shown(identifier)} is not text; {REMEDY}")
        where = f"{self.path}, metadata of document {identifier!r}"
        parsed = json_files.parse(str(metadata), where, dict)
        if "\\u" in str(metadata):  # an escape may stand for half a surrogate pair, which can't be written as UTF-8
            json_files.as_text(json.dumps(parsed, ensure_ascii=False), where)
        return Document(str(identifier), str(text), parsed, tuple(map(str, questions)), number)

    def _stream(self, query: str) -> Iterator[Any]:
        with self._lock, sqlite_errors(self.path):
            yield from self._database.execute(query)

    def _rows(self, query: str, *values: object) -> list[Any]:
        with self._lock, sqlite_errors(self.path):
            return self._database.execute(query, values).fetchall()


def _are_scales(values: np.ndarray) -> np.bool:
    return ((values >= 0) & (values < np.inf)).all()


def check_is_file(path: pathlib.Path) -> None:
    """Raises EndxError if there is no file."""
    make = "make one with `endx train`, `endx evaluate` or `endx encode`"
    if (path / "config.json").is_file() and (path / "index.sqlite").is_file():
        raise EndxError(f"{path} is the workdir of a run, not an index: use {path / 'index.sqlite'}")
    if path.is_dir():
        raise EndxError(f"{path} is a folder and contains no index: name the file of an index, or {make}")
    if not path.exists():
        raise EndxError(f"{path} contains no index: {make}")
