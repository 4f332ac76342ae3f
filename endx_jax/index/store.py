"""Rows of an index file: reading by several threads, insertion and deletion. `index_file` describes the tables."""

import contextlib
import itertools
import json
import pathlib
import sqlite3
import threading
import weakref
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from endx_jax import json_files
from endx_jax.data.batches.ragged import RaggedVectors
from endx_jax.data.sets.documents import Document
from endx_jax.errors import EndxError
from endx_jax.index.index_file import (
    COSINE,
    PASSAGES,
    REMEDY,
    IndexInfo,
    check_is_file,
    connect,
    info_of,
    sqlite_errors,
)
from endx_jax.inference.maxsim import listed_vectors, pooled
from endx_jax.numerics import Quantized, dequantize, quantize, signs

Embeddings = np.ndarray | Quantized | RaggedVectors | list[np.ndarray]

# Rows that are read at a time.
STEP = 4096

LISTED = "(SELECT value FROM json_each(?))"  # numbers of a JSON list; SQLite may cut texts at a NUL
ROW_OF = "SELECT row FROM documents WHERE id = ?"
INSERT = "INSERT INTO documents (id, metadata) VALUES (?, ?)"
INSERT_PASSAGE = "INSERT INTO passages (document, number, embedding, scale, text) VALUES (?, ?, ?, ?, ?)"
INSERT_QUESTION = "INSERT INTO questions (document, embedding, scale, text) VALUES (?, ?, ?, ?)"
INSERT_TOKENS = "INSERT INTO tokens VALUES (?, ?, ?)"
HAS_TOKENS = "SELECT passage IS NOT NULL FROM passages LEFT JOIN tokens ON passage = passages.row LIMIT 1"


class StoredEmbeddings(NamedTuple):
    """Embeddings of n passages, or of n known questions, in the order of their rows.

    Attributes:
      rows: int64 [n], ascending.
      embeddings: [n, E], of the index's precision: an array, or `snapshot.Parts`.
      scales: float32 [n] of int8 embeddings; else None.
      documents: int64 [n], rows of their documents, in ascending order with repeats.
      signs: their bits (see `numerics.signs`), as `embeddings`, in an index of precision `binary`; else None.
    """

    rows: np.ndarray
    embeddings: Any
    scales: np.ndarray | None
    documents: np.ndarray
    signs: Any = None


class Store:
    """Open index file, which several threads may read. Its errors are those of `index_file.sqlite_errors`.

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

    def rows(self, query: str, *values: object) -> Generator[Any, None, None]:
        """Yields the rows of a query; other threads wait until all are read, or the generator is closed."""
        with self._lock, sqlite_errors(self.path):
            yield from self._database.execute(query, values)

    def embeddings(self, where: str, *values: object, table: str = PASSAGES) -> Iterator[StoredEmbeddings]:
        """Yields the embeddings of the rows of a table that meet a condition, some thousand at a time, perhaps none."""
        query = f"SELECT row, embedding, scale, document FROM {table} WHERE {where} ORDER BY row"
        # After an error the thread that holds the lock closes the rows at once, so that other threads can read.
        with contextlib.closing(self.rows(query, *values)) as rows:
            while part := [*itertools.islice(rows, STEP)]:
                yield self._checked(part)

    def documents(self, rows: Sequence[int]) -> dict[int, Document]:
        """Returns the passages in rows, with their document's metadata; those that were deleted are omitted."""
        found = dict[int, Document]()
        for start in range(0, len(rows), STEP):
            some = json.dumps(rows[start : start + STEP])
            known: dict[int, list[object]] = {}
            query = f"SELECT document FROM passages WHERE row IN {LISTED}"
            query = f"SELECT document, text FROM questions WHERE document IN ({query}) ORDER BY row"
            for document, text in self.rows(query, some):
                known.setdefault(document, []).append(text)
            query = "SELECT passages.row, document, id, text, metadata, number FROM passages"
            query += f" JOIN documents ON documents.row = document WHERE passages.row IN {LISTED} ORDER BY passages.row"
            for row, of, *fields in [*self.rows(query, some)]:
                found[row] = self._document(known.get(of, []), *fields)
        return found

    def document(self, identifier: str) -> list[Document]:
        """Returns the passages of the document with this id at one moment, also while it is replaced; [] for none."""
        json_files.as_text(identifier, "the id", may_be_empty=True)
        with self.reading():
            rows = [row for (row,) in self.rows(f"SELECT row FROM passages WHERE document = ({ROW_OF})", identifier)]
            return [*self.documents(rows).values()]

    def _document(
        self, questions: Sequence[object], identifier: object, text: object, metadata: object, number: object
    ) -> Document:
        """Returns a passage as the file has it."""
        texts = all(isinstance(one, str) for one in (identifier, text, metadata, *questions))
        if not texts or not isinstance(number, int):
            raise EndxError(f"{self.path} is damaged: document {json_files.shown(identifier)} is not text; {REMEDY}")
        where = f"{self.path}, metadata of document {identifier!r}"
        parsed = json_files.parse(str(metadata), where, dict)
        if "\\u" in str(metadata):  # an escape may stand for half a surrogate pair, which can't be written as UTF-8
            json_files.as_text(json.dumps(parsed, ensure_ascii=False), where)
        return Document(str(identifier), str(text), parsed, tuple(map(str, questions)), number)

    def token_vectors(self, rows: Sequence[int]) -> dict[int, Quantized]:
        """Returns the token vectors [L, E] of rows, in their order; rows whose document was deleted are omitted."""
        query = f"SELECT row, codes, scales FROM passages LEFT JOIN tokens ON passage = row WHERE row IN {LISTED}"
        width, found = self.info.width, {}
        for row, codes, scales in [*self.rows(query, json.dumps(rows))]:
            valid = type(codes) is type(scales) is bytes and len(codes) * 4 == len(scales) * width
            if not valid or not _are_scales(np.frombuffer(scales, "<f4")):
                raise EndxError(f"{self.path} is damaged: a document has no token vectors of width {width}; {REMEDY}")
            found[row] = Quantized(np.frombuffer(codes, np.int8).reshape(-1, width), np.frombuffer(scales, "<f4"))
        return {row: found[row] for row in rows if row in found}

    def _checked(self, columns: Sequence[tuple[int, object, object, object]]) -> StoredEmbeddings:
        """Returns rows, embeddings, scales and documents as the file has them; raises EndxError if they are damaged."""
        rows, blobs, scales, documents = zip(*columns, strict=True)
        size, quantized = self.info.dtype.itemsize * self.info.width, self.info.dtype == np.int8

        def require(sound: bool | np.bool, damage: str) -> None:
            if not sound:
                raise EndxError(f"{self.path} is damaged: an embedding {damage}; {REMEDY}")

        require(all(type(blob) is bytes and len(blob) == size for blob in blobs), f"does not have {size} bytes")
        require(not quantized or all(type(scale) is float for scale in scales), "has no scale")
        require(all(type(document) is int for document in documents), "has no document")
        embeddings = np.frombuffer(b"".join(blobs), self.info.dtype).reshape(-1, self.info.width)
        factors = np.array(scales, np.float32) if quantized else None
        finite = np.isfinite(embeddings).all() if factors is None else _are_scales(factors)
        require(finite, "contains nan, infinity or a negative scale")
        bits = signs(embeddings) if self.info.precision == "binary" else None
        return StoredEmbeddings(np.array(rows, np.int64), embeddings, factors, np.array(documents, np.int64), bits)


def _are_scales(values: np.ndarray) -> np.bool:
    return ((values >= 0) & (values < np.inf)).all()


def count_passages(database: sqlite3.Connection) -> int:
    """Returns the number of passages; a document that is not split counts as one."""
    return database.execute("SELECT count(*) FROM passages").fetchone()[0]


def insert(
    database: sqlite3.Connection,
    info: IndexInfo,
    documents: Sequence[Document],
    embeddings: Embeddings,
    known: Embeddings | None = None,
) -> None:
    """Inserts n documents or passages, and the embeddings of their texts and known questions.

    A passage is added to the last document if that has its id. Of token vectors, which are stored too, the means are
    the embeddings. Embeddings are rounded to the precision of the index, and those of a cosine get unit norm.

    Args:
      database: an index.
      info: its description.
      documents: n texts.
      embeddings: [n, E], or token vectors.
      known: [K, E], or token vectors, of the K known questions of the documents; None if there are none.

    Raises:
      EndxError: embeddings have another width or number, or one is not finite; some texts have token vectors and others
        none; an id exists already; or a text can't be encoded as UTF-8.
    """
    asked = [document for document in documents for _ in document.questions]
    blobs = _blobs(documents, _rounded(embeddings, len(documents), info, "documents"))
    blobs_of_known = _blobs(asked, _rounded(known, len(asked), info, "known questions"))
    tokens = listed_vectors(embeddings)
    by_token = isinstance(tokens, RaggedVectors)
    if database.execute(HAS_TOKENS).fetchone() == (not by_token,):
        kinds = "one vector", "token vectors"
        of = f"{kinds[by_token]} for each document, but the index has {kinds[not by_token]}"
        raise EndxError(f"embeddings have {of}: encode them with {info.model.get('name')}")
    vectors = tokens if by_token else [None] * len(documents)
    row, last = _last_document(database)
    for document, (blob, scale), text_vectors in zip(documents, blobs, vectors, strict=True):
        try:
            if not (document.passage and document.id == last):
                fields = document.id, _metadata(document)
                row, last = database.execute(INSERT, fields).lastrowid or 0, document.id
            for text in document.questions:
                database.execute(INSERT_QUESTION, (row, *next(blobs_of_known), text))
            passage = database.execute(INSERT_PASSAGE, (row, document.passage, blob, scale, document.text)).lastrowid
            if text_vectors is not None:
                codes, scales = text_vectors if isinstance(text_vectors, Quantized) else quantize(text_vectors, np)
                database.execute(INSERT_TOKENS, (passage, codes.tobytes(), scales.astype("<f4").tobytes()))
        except UnicodeEncodeError:
            raise EndxError(f"document {document.id!a} holds a lone surrogate, which UTF-8 can't encode") from None
        except sqlite3.IntegrityError:
            raise EndxError(f"document {document.id!r} occurs twice: ids must be unique") from None


def _last_document(database: sqlite3.Connection) -> tuple[int, str]:
    """Returns row and id of the last document, to which further passages may be added; row 0 if there is none."""
    return database.execute("SELECT row, id FROM documents ORDER BY row DESC LIMIT 1").fetchone() or (0, "")


def _metadata(document: Document) -> str:
    """Returns the metadata as JSON; raises EndxError for values that JSON lacks, or SQLite can't parse or compare."""
    metadata = {name: x.item() if isinstance(x, np.generic) else x for name, x in document.metadata.items()}
    if any(isinstance(value, int) and abs(value) >= 2**63 for value in metadata.values()):
        raise EndxError(f"the metadata of document {document.id!r} hold a number of over 64 bits: write it as text")
    try:
        return json.dumps(metadata, ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise EndxError(f"the metadata of document {document.id!r} hold nan or infinity: leave it out") from None
    except TypeError as failure:
        raise EndxError(f"the metadata of document {document.id!r}: {failure}: write it as text") from None


def _rounded(embeddings: Embeddings | None, count: int, info: IndexInfo, what: str) -> np.ndarray | Quantized:
    """Returns embeddings [n, E] in the precision of an index, and checks their shape; None means no embeddings."""
    given = np.zeros((0, info.width), np.float32) if embeddings is None else embeddings
    vectors = pooled(given, cosine=info.metric == COSINE)
    shape = np.shape(vectors.codes if isinstance(vectors, Quantized) else vectors)
    if shape != (count, info.width):
        of = f"{count} {what} and an index of width {info.width}"
        raise EndxError(f"embeddings have shape {shape} for {of}: encode them with {info.model.get('name')}")
    if info.dtype == np.int8 and not isinstance(vectors, Quantized):
        return quantize(np.asarray(vectors, np.float32), np)
    return vectors if info.dtype == np.int8 else np.asarray(dequantize(vectors), info.dtype)


def _blobs(documents: Sequence[Document], embeddings: np.ndarray | Quantized) -> Iterator[tuple[bytes, float | None]]:
    """Yields blob and scale of the embedding of each document, or of its questions."""
    vectors, scales = embeddings if isinstance(embeddings, Quantized) else (embeddings, None)
    finite = np.isfinite(vectors.sum(axis=1, dtype=np.float32) if scales is None else scales)
    if not finite.all():
        raise EndxError(f"the embedding of document {documents[int(finite.argmin())].id!r} contains nan or infinity")
    vectors = np.ascontiguousarray(vectors, vectors.dtype.newbyteorder("<"))
    factors: Iterable[float | None] = [None] * len(documents) if scales is None else scales.tolist()
    yield from zip(map(np.ndarray.tobytes, vectors), factors, strict=True)


def copy_into(database: sqlite3.Connection, store: Store) -> None:
    """Inserts all contents of an unchanged index, whose first passages may continue the database's last document."""
    before, (row, last) = count_passages(database), _last_document(database)
    ((continued,),) = store.rows("SELECT count(*) FROM documents WHERE row = 1 AND id = ?", last)
    row -= continued
    for statement, query in (
        (INSERT, f"SELECT id, metadata FROM documents WHERE row > {continued} ORDER BY row"),
        (INSERT_PASSAGE, f"SELECT document + {row}, number, embedding, scale, text FROM passages ORDER BY row"),
        (INSERT_QUESTION, f"SELECT document + {row}, embedding, scale, text FROM questions ORDER BY row"),
        (INSERT_TOKENS, f"SELECT passage + {before}, codes, scales FROM tokens ORDER BY passage"),
    ):
        database.executemany(statement, store.rows(query))


def delete_documents(database: sqlite3.Connection, ids: Sequence[str]) -> dict[str, int]:
    """Deletes documents by id; returns the row of each one that was there."""
    rows = {name: row for name in ids for (row,) in database.execute(ROW_OF, [name])}
    database.executemany("INSERT INTO deleted (id, row) VALUES (?, ?)", rows.items())
    database.executemany("DELETE FROM documents WHERE row = ?", ((row,) for row in rows.values()))
    return rows
