"""Index of an encoded corpus: search, addition and deletion of documents. `index.index_file` describes its file."""

import collections
import contextlib
import os
import pathlib
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from endx_jax.buckets import CACHE, local_copy
from endx_jax.data.languages import detect
from endx_jax.data.sets.documents import Document, whole_document
from endx_jax.errors import EndxError, InUse, ReadOnly, counted
from endx_jax.files import CacheFolder
from endx_jax.index.index_file import (
    COSINE,
    PRECISIONS,
    IndexInfo,
    changing,
    create,
    delete_documents,
    info_of,
    insert,
    is_new,
    store_info,
)
from endx_jax.index.index_reader import IndexReader
from endx_jax.index.snapshot import Snapshot
from endx_jax.inference.maxsim import pooled
from endx_jax.json_files import shown
from endx_jax.numerics import Quantized, quantize
from endx_jax.ranking.search import Neighbours

ENCODED = "~/.cache/endx_jax/indexes"  # indexes of `endx encode` without --output, named by a corpus's content
READ_ONLY = {
    CACHE: "is a copy of an index in a bucket: change a file of your own and upload it",
    ENCODED: "follows its corpus: change that corpus and run again, or serve an index of `endx encode --output=FILE`",
}


def write_index(
    path: pathlib.Path,
    embeddings: np.ndarray | Quantized,
    documents: Sequence[Document],
    *,
    metric: str,
    model: Mapping[str, Any],
    corpus: Mapping[str, Any] | None = None,
    known: np.ndarray | None = None,
    language: str = "",
) -> None:
    """Writes an index in one transaction, which replaces the contents of an older index.

    Args:
      path: file of the index; missing folders are created.
      embeddings: float32 or float16 [N, E], or int8 with its scales; or token vectors, objects [N] as `pooled` takes.
      documents: N texts: documents with unique ids, or passages of such documents in order.
      metric: `cosine` or `inner product`.
      model: identifies the model that encoded them: see `IndexInfo`.
      corpus: source of the documents: see `IndexInfo`.
      known: embeddings [K, E] of all known questions of the documents, in their order; None if there are none.
      language: language of the documents; empty: it is detected.

    Raises:
      InUse: the file holds an index that was changed since it was written, is being changed by another process, or
        can't be read: it may hold documents that exist nowhere else.
      EndxError: the file can't be written, an embedding is not finite, or two documents have the same id.
    """
    _check_distinct(documents)
    tokens = embeddings
    embeddings = pooled(embeddings, cosine=metric == COSINE)
    vectors = embeddings.codes if isinstance(embeddings, Quantized) else embeddings
    precision = str(vectors.dtype)
    if precision not in PRECISIONS or (precision == "int8") != isinstance(embeddings, Quantized):
        raise EndxError(f"an index holds embeddings in float32, float16, or int8 with scales, not {precision}")
    language = language or detect(document.text for document in documents)
    info = IndexInfo(vectors.shape[1], precision, metric, model, corpus or {}, language=language)
    with starting(path) as database:
        _make_empty(database, path, info)
        insert(database, documents, embeddings, _known(known, documents, info), tokens)


@contextlib.contextmanager
def starting(path: pathlib.Path) -> Iterator[sqlite3.Connection]:
    """Context of a write transaction in a file that is created if it is missing, with its folder.

    Raises:
      EndxError: the file can't be written.
    """
    new = not os.path.lexists(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise EndxError(f"can't write {path}: it is a folder; name a file, such as {path / 'index.sqlite'}")
    except OSError as failure:
        raise EndxError(f"can't write {path}: {failure.strerror}") from None
    try:
        with changing(path, "rwc") as database:
            yield database
    except BaseException:
        if new and path.is_file() and not path.stat().st_size:
            path.unlink()
        raise


def _make_empty(database: sqlite3.Connection, path: pathlib.Path, info: IndexInfo) -> None:
    """Creates the tables, or empties those of an index that may be replaced.

    Raises:
      InUse: the index must not be replaced.
    """
    if is_new(database):
        create(database, info)
        return
    try:
        changed = info_of(database, path).changed
    except EndxError as unreadable:
        raise InUse(f"{path} was not replaced: {unreadable}") from None
    if changed:
        raise InUse(
            f"{path} was not replaced, as documents were added or deleted since it was written; rename it and repeat"
        )
    for table in ("documents", "deleted"):
        database.execute(f"DELETE FROM {table}")
    store_info(database, **vars(info))


class Index:
    """An open index. Several threads and processes may search it while others change it.

    Attributes:
      path: file of the index.
    """

    def __init__(self, path: str | os.PathLike):
        """Opens the index, or a local copy of one in a bucket, and reads its embeddings into memory.

        Raises:
          EndxError: there is no index, or it is damaged.
        """
        self._source, self._lock, self._reopening = path, threading.Lock(), threading.Lock()
        self._open(local_copy(path, by_version=True))

    def _open(self, path: pathlib.Path, before: Snapshot | None = None) -> None:
        reader = IndexReader(path)
        if before is not None:
            _check_same_model(path, before.info, reader.info)
        with reader.reading():
            version, deletions = reader.version(), reader.count_deletions()
            snapshot = Snapshot.read(reader, 0 if before is None else before.generation + 1)
        with self._lock:
            self.path, self._reader, self._snapshot = path, reader, snapshot
            self._version, self._deletions, self._file = version, deletions, path.stat()

    def reopen(self) -> None:
        """Opens the present version of an index in a bucket; an EndxError leaves the index as it is."""
        with self._reopening:
            path = local_copy(self._source, by_version=True)
            if path != self.path:
                self._open(path, self._snapshot)

    @property
    def snapshot(self) -> Snapshot:
        """The present state of the index, immutable.

        Changes of other processes are read first. While the file can't be read, the last state remains. A change may
        renumber rows: look up rows in the snapshot that found them.

        Raises:
          EndxError: the index was replaced by one of another model.
        """
        with self._lock, contextlib.suppress(InUse):
            version = self._reader.version()
            if version != self._version:
                with self._reader.reading():
                    self._update()
                self._version = version
        return self._snapshot

    def _update(self) -> None:
        """Reads the changes since the last call; all embeddings if the index was written again."""
        old, new = self._snapshot.info, self._reader.info
        if old.content == new.content:
            deletions, deleted = self._reader.deleted(self._deletions)
            self._snapshot = self._snapshot.after([row for row, _ in deleted])
            self._deletions = deletions
            return
        _check_same_model(self.path, old, new)
        self._deletions = self._reader.count_deletions()
        self._snapshot = Snapshot.read(self._reader, self._snapshot.generation + 1)

    @property
    def info(self) -> IndexInfo:
        """Description of the index."""
        return self._snapshot.info

    @property
    def contents(self) -> str:
        """Number of documents and their source, for messages."""
        corpus, passages = self.info.corpus, self._snapshot.count_passages()
        source = f"{corpus.get('part', '')!s:.80}{shown(corpus['path'])}" if "path" in corpus else self.path
        known = self._snapshot.known
        asked = f" with {len(known):,} known questions" if known else ""
        split = f" in {passages:,} passages" if passages > len(self) else ""
        changed = ", changed since" if self.info.changed else ""
        return f"{counted(len(self), 'document')}{split}{asked} ({source}{changed})"

    @property
    def by_token(self) -> bool:
        """True if the index holds token vectors of its documents."""
        return self._reader.by_token

    def __len__(self) -> int:
        """Returns the number of documents at the last search or change; `len(index.snapshot)` is the present one."""
        return len(self._snapshot)

    def __repr__(self) -> str:
        return f"Index({str(self.path)!r}, {self._snapshot})"

    def __contains__(self, identifier: str) -> bool:
        """Returns true if the index has a document with this id."""
        return identifier in self._reader.rows_of([identifier])

    def get(self, identifier: str) -> Document | None:
        """Returns the document with this id, with the text of all its passages, or None."""
        passages = self._reader.documents(self._reader.passages_of(identifier))
        return whole_document([*passages.values()]) if passages else None

    def deleted(self) -> list[str]:
        """Returns the ids of all documents that were deleted since the index was written; some were added again."""
        return list(dict.fromkeys(name for _, name in self._reader.deleted()[1]))

    def check_model(self, name: str, identity: str, teacher: str = "") -> None:
        """Raises EndxError unless the index was encoded by the model of this identity; the message names both.

        To search it, a model will do whose embeddings approximate those of the encoder: `teacher` is the identity of
        the model that they approximate.
        """
        model = self.info.model
        if model.get("identity") not in (identity, teacher or identity):
            raise EndxError(
                f"{self.path} was encoded by {model.get('name')} (identity {str(model.get('identity'))[:12]}), not "
                f"by {name} ({identity[:12]}): use the former, or encode the documents again"
            )

    def search(self, questions: np.ndarray, k: int, where: Mapping[str, object] | None = None) -> Neighbours:
        """Finds the best k documents for questions [Q, E]; returns the rows of their best passages in the snapshot.

        `where` selects documents by their metadata: see `filters.condition`.
        """
        snapshot = self.snapshot
        return snapshot.search_documents(questions, k, snapshot.where(where) if where else None)

    def document(self, row: int) -> Document:
        """Returns the passage of a row of the snapshot."""
        return self._snapshot.document(row)

    def add(
        self,
        documents: Sequence[Document],
        embeddings: np.ndarray,
        *,
        replace: bool = False,
        known: np.ndarray | None = None,
    ) -> int:
        """Adds documents in one transaction; returns the number of those that were replaced.

        Args:
          documents: n texts: documents, or all passages of documents in order.
          embeddings: float32 [n, E], rounded to the precision of the index; or token vectors, as `pooled` takes them.
          replace: whether documents replace those with the same ids.
          known: float32 [K, E], of all known questions of the documents, in their order; None: there are none.

        Raises:
          InUse: another process's change lasts too long, or the index was replaced since it was opened.
          EndxError: an id exists already, or occurs twice among the new documents; or the embeddings have another width
            or number, or are not finite.
        """
        _check_distinct(documents)
        vectors = rounded(embeddings, len(documents), self.info), _known(known, documents, self.info)
        if not documents:
            return 0
        with self._changing() as database:
            replaced = delete_documents(database, list(dict.fromkeys(document.id for document in documents)))
            if replaced and not replace:
                raise EndxError(
                    f"{self.path} already contains document {_some(replaced)}: delete it, or choose another id"
                )
            insert(database, documents, *vectors, embeddings)
        return len(replaced)

    def delete(self, ids: Iterable[str], *, missing_ok: bool = False) -> int:
        """Deletes documents, whose texts and embeddings are overwritten in the file; returns their number.

        Raises:
          InUse: as `add`.
          EndxError: there is no document with one of the ids, and `missing_ok` is false.
        """
        names = list(dict.fromkeys(ids))
        if not names:
            return 0
        with self._changing() as database:
            removed = set(delete_documents(database, names))
            if (missing := [name for name in names if name not in removed]) and not missing_ok:
                raise EndxError(f"{self.path} has no document {_some(missing)}: check the ids")
        return len(removed)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        """Context of a write transaction in the opened index; the snapshot is up to date afterwards.

        It raises ReadOnly for an index in a cache, which is replaced when its source changes.
        """
        for folder, reason in READ_ONLY.items():
            if CacheFolder(folder).folder.resolve() in self.path.resolve().parents:
                raise ReadOnly(f"{self._source} {reason}")
        if not self.path.is_file():
            raise InUse(f"{self.path} was moved or deleted since it was opened: restore it, or open another index")
        with changing(self.path) as database:
            same = os.path.samestat(self.path.stat(), self._file)  # a copy has the same content, but isn't read here
            if not same or info_of(database, self.path).content != self.info.content:
                raise InUse(
                    f"{self.path} was replaced since it was opened: open it again (restart a server), then repeat the "
                    "change"
                )
            yield database
            store_info(database, changed=True)
        _ = self.snapshot


def rounded(embeddings: Any, count: int, info: IndexInfo, what: str = "documents") -> Any:
    """Returns embeddings, `pooled`, in the precision of an index, and checks their shape; None means no embeddings."""
    embeddings = np.zeros((0, info.width), np.float32) if embeddings is None else embeddings
    embeddings = pooled(embeddings, cosine=info.metric == COSINE, width=info.width)
    if np.shape(embeddings) != (count, info.width):
        raise EndxError(
            f"embeddings have shape {np.shape(embeddings)} for {count} {what} and an index of width {info.width}: "
            f"encode them with the index's model, {info.model.get('name')}"
        )
    if info.precision == "int8":
        return jax.tree.map(np.asarray, quantize(jnp.asarray(embeddings, jnp.float32)))
    return np.asarray(embeddings, info.precision)


def _known(known: np.ndarray | None, documents: Sequence[Document], info: IndexInfo) -> np.ndarray | Quantized:
    return rounded(known, sum(len(document.questions) for document in documents), info, "known questions")


def _check_distinct(documents: Sequence[Document]) -> None:
    names = collections.Counter(document.name for document in documents)
    if twice := [name for name, count in names.items() if count > 1]:
        raise EndxError(f"document {_some(twice)} occurs twice: ids must be unique")


def _check_same_model(path: pathlib.Path, old: IndexInfo, new: IndexInfo) -> None:
    if old.model.get("identity") != new.model.get("identity") or old.width != new.width or not new.complete:
        raise EndxError(f"{path} was replaced by an index of another model: open it again (restart a server)")


def _some(ids: Sequence[str]) -> str:
    """Formats the first ids."""
    return ", ".join(map(repr, ids[:3])) + (f" and {len(ids) - 3:,} others" if len(ids) > 3 else "")
