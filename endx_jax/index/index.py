"""Index of an encoded corpus: search, addition and deletion of documents. `index.index_file` describes its file."""

import collections
import contextlib
import os
import pathlib
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from endx_jax.buckets import CACHE, local_copy
from endx_jax.data.batches.ragged import take
from endx_jax.data.languages import detect
from endx_jax.data.sets.documents import Document, FoundDocument, check_id, whole_document
from endx_jax.errors import EndxError, InUse, ReadOnly, counted
from endx_jax.files import cache_folder, expanded
from endx_jax.index.approximate import ENGINES, EXACT
from endx_jax.index.cache import erase_documents
from endx_jax.index.index_file import (
    COSINE,
    PRECISIONS,
    IndexInfo,
    changing,
    create,
    info_of,
    is_new,
    store_info,
)
from endx_jax.index.snapshot import Snapshot
from endx_jax.index.store import Embeddings, Store, delete_documents, insert
from endx_jax.index.text_search import BM25, DENSE, HYBRID, MODES, TextRanker
from endx_jax.inference.maxsim import listed_vectors, pooled
from endx_jax.json_files import as_items, as_text, as_whole, shown
from endx_jax.numerics import Quantized
from endx_jax.ranking.hybrid import Hybrid, default_hybrid
from endx_jax.settings import check_choice
from endx_jax.uploads import uploads

ENCODED = "~/.cache/endx_jax/indexes"  # indexes of `endx encode` without --output, named by settings and content
READ_ONLY = {
    CACHE: "is a copy of an index in a bucket: change a file of your own and upload it",
    ENCODED: "follows its corpus: change that corpus and run again, or serve an index of `endx encode --output=FILE`",
}


@uploads("path")
def write_index(
    path: str | os.PathLike,
    embeddings: Embeddings,
    documents: Iterable[Document],
    *,
    metric: str,
    model: Mapping[str, Any],
    corpus: Mapping[str, Any] | None = None,
    known: Embeddings | None = None,
    language: str = "",
    binary: bool = False,
) -> None:
    """Writes an index in one transaction, which replaces the contents of an older index.

    Args:
      path: file of the index, which may be in a bucket; missing folders are created.
      embeddings: float32 or float16 [N, E], or int8 with its scales; or token vectors. With the metric `cosine` they
        are scaled to unit norm.
      documents: N texts: documents with unique ids, or passages of such documents in order.
      metric: `cosine` or `inner product`.
      model: identifies the model that encoded them: see `IndexInfo`.
      corpus: source of the documents: see `IndexInfo`.
      known: embeddings [K, E] of all known questions of the documents, in their order; None if there are none.
      language: language of the documents; empty: it is detected.
      binary: whether the precision is `binary`: see `IndexInfo`.

    Raises:
      InUse: the file holds an index that was changed since it was written, is being changed by another process, or
        can't be read: it may hold documents that exist nowhere else.
      EndxError: the file can't be written, an embedding is not finite, or two documents have the same id.
    """
    path, documents = expanded(path), _checked(documents)
    first = pooled(take(listed_vectors(embeddings), slice(1)), cosine=metric == COSINE)
    vectors = first.codes if isinstance(first, Quantized) else first
    precision = str(vectors.dtype)
    if precision not in PRECISIONS or (precision == "int8") != isinstance(first, Quantized):
        raise EndxError(f"an index holds embeddings in float32, float16, or int8 with scales, not {precision}")
    language, precision = language or detect(document.text for document in documents), "binary" if binary else precision
    info = IndexInfo(vectors.shape[1], precision, metric, dict(model), dict(corpus or {}), language=language)
    with changing(path, may_create=True) as database:
        _make_empty(database, path, info)
        insert(database, info, documents, embeddings, known)


def _make_empty(database: sqlite3.Connection, path: pathlib.Path, info: IndexInfo) -> None:
    """Creates the tables, or empties those of an index that may be replaced."""
    if is_new(database):
        create(database, info)
        return
    try:
        changed = info_of(database, path).changed
    except EndxError as unreadable:
        raise InUse(f"{path} was not replaced: {unreadable}") from None
    if changed:
        raise InUse(f"{path} was not replaced, as documents were added or deleted since it was written: rename it")
    for table in ("documents", "deleted"):
        database.execute(f"DELETE FROM {table}")
    store_info(database, **vars(info))


class Index:
    """An open index. Several threads and processes may search it while others change it.

    `endx_jax.open_index` opens one with its model.

    Attributes:
      source: path that was given, which may be in a bucket.
      path: file of the index, or of its local copy.
      encoder: model with `encode_query` and `encode_document`, such as `index_model.IndexModel`; None: only BM25 and
        searches by embeddings are possible.
      hybrid: fusion of mode `hybrid`.
    """

    def __init__(
        self,
        path: str | os.PathLike,
        encoder: Any = None,
        *,
        engine: str = EXACT,
        hybrid: Hybrid | None = None,
    ):
        """Opens the index, or a local copy of one in a bucket, and maps its embeddings from the cache beside it.

        `engine` is `exact` or a name in `approximate.ENGINES`. Without `hybrid` the fusion is the default.

        Raises:
          EndxError: there is no index, it is damaged, or there is no such engine.
        """
        check_choice("engine", engine, (EXACT, *ENGINES))
        self.source, self._lock, self._reopening = path, threading.Lock(), threading.Lock()
        self._open(local_copy(path, by_version=True))
        self.encoder, self.hybrid = encoder, hybrid or default_hybrid(cosine=self._snapshot.info.metric == COSINE)
        self._ranker = TextRanker(engine)

    def _open(self, path: pathlib.Path, before: Snapshot | None = None) -> None:
        store = Store(path)
        version, snapshot = _version(store), Snapshot.read(store, before)
        with self._lock:
            self.path, self._store, self._snapshot, self._version = path, store, snapshot, version
            self._file = path.stat()

    def reopen(self) -> None:
        """Opens the present version of an index in a bucket; an EndxError leaves the index as it is."""
        with self._reopening:
            path = local_copy(self.source, by_version=True)
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
            version = _version(self._store)
            if version != self._version:
                self._snapshot, self._version = Snapshot.read(self._store, self._snapshot), version
        return self._snapshot

    def __str__(self) -> str:
        """Returns the number of documents and their source, for messages."""
        info, passages, known = self._snapshot.info, self._snapshot.passages, self._snapshot.known
        corpus = info.corpus
        source = f"{corpus.get('part', '')!s:.80}{shown(corpus['path'])}" if "path" in corpus else self.path
        asked = f" with {len(known):,} known questions" if known else ""
        split = f" in {passages:,} passages" if passages > len(self) else ""
        changed = ", changed since" if info.changed else ""
        return f"{counted(len(self), 'document')}{split}{asked} ({source}{changed})"

    def __len__(self) -> int:
        """Returns the number of documents at the last search or change; `len(index.snapshot)` is the present one."""
        return len(self._snapshot)

    def __repr__(self) -> str:
        return f"Index({str(self.path)!r}, {self._snapshot})"

    def __contains__(self, identifier: str) -> bool:
        """Returns true if the index has a document with this id."""
        return bool(self._store.document(identifier))

    def get(self, identifier: str) -> Document | None:
        """Returns the document with this id, with the text of all its passages, or None."""
        passages = self._store.document(identifier)
        return whole_document(passages) if passages else None

    @property
    def default_mode(self) -> str:
        """Default search mode: `hybrid`, unless validation chose weight 0."""
        return HYBRID if self.hybrid.weight != 0 else DENSE

    def describe(self, mode: str) -> str:
        """Returns a line on what a search in a mode searches, and by which scores."""
        reason = " (in validation, BM25 did not improve it)" if mode == DENSE == self.default_mode else ""
        return f"searching {self}, mode {mode}{f': {self.hybrid}' if mode == HYBRID else reason}"

    def search(
        self,
        questions: str | Sequence[str],
        k: int = 10,
        *,
        mode: str | None = None,
        where: Mapping[str, object] | None = None,
        embeddings: Embeddings | None = None,
    ) -> Any:
        """Finds the documents that answer questions.

        Args:
          questions: one text, or Q texts.
          k: largest number of documents per question, each as its best passage; with `bm25`, documents without a common
            word are omitted.
          mode: `dense` (inner products of embeddings), `bm25`, or `hybrid` (both, fused by `hybrid`); None: the
            `default_mode`.
          where: filter on the metadata of the documents (see `filters.condition`); None: all documents.
          embeddings: float32 [Q, E] of the questions, or token vectors; None: they are computed, unless
            `mode` is `bm25`. With token vectors, the best 100 or more passages are ranked again by those of the index.

        Returns:
          A list of `FoundDocument`, best first, for one question; a list of such lists for a sequence of questions.

        Raises:
          EndxError: an argument is not one of these, or there is no model.
        """
        mode, texts = mode or self.default_mode, as_items(questions, "questions", "a string or a list of strings")
        check_choice("mode", mode, MODES)
        k = as_whole(k, "k", least=1)
        for number, text in enumerate(texts):
            as_text(text, f"questions[{number}]", may_be_empty=True)
        if embeddings is None and mode != BM25 and texts:
            embeddings = self._encoder(f"questions: load one, or search with mode {BM25!r}").encode_query(texts)
        vectors = listed_vectors(embeddings)
        if vectors is not None and len(vectors) != len(texts):
            raise EndxError(f"embeddings has {len(vectors)} rows for {len(texts)} questions: give one for each")
        snapshot = self.snapshot
        selected = snapshot.where(where) if where else None
        rankings = self._ranker.rank(
            snapshot, texts, k, embeddings=vectors, hybrid=self.hybrid, mode=mode, where=selected
        )
        # A document that was deleted since the ranking is omitted.
        documents = snapshot.documents({row for ranking in rankings for row, _ in ranking})
        readable = [[(row, score) for row, score in ranking if row in documents] for ranking in rankings]
        found = [
            [FoundDocument(rank, score, documents[row]) for rank, (row, score) in enumerate(ranking, start=1)]
            for ranking in readable
        ]
        return found[0] if isinstance(questions, str) else found

    def _encoder(self, what: str) -> Any:
        if self.encoder is None:
            raise EndxError(f"there is no model to encode {what}")
        return self.encoder

    def add(
        self,
        documents: Document | Iterable[Document],
        embeddings: Embeddings | None = None,
        *,
        replace: bool = False,
        known: Embeddings | None = None,
    ) -> int:
        """Adds documents in one transaction; returns the number of those that were replaced.

        Args:
          documents: n texts: documents, or all passages of documents in order.
          embeddings: float32 [n, E], scaled to unit norm if the metric is `cosine`, and rounded to the precision of the
            index; or token vectors. None: they are computed, as are those of known questions.
          replace: whether documents replace those with the same ids.
          known: float32 [K, E], of all known questions of the documents, in their order; None: there are none.

        Raises:
          InUse: another process's change lasts too long, or the index was replaced since it was opened.
          EndxError: an id exists already, occurs twice among the new documents, or is none (see `check_id`); the
            embeddings have another width or number, or are not finite; or there is no model.
        """
        documents = _checked(documents)
        for number, document in enumerate(documents):
            check_id(document.id, f"the id of documents[{number}]")
        if not documents:
            return 0
        if embeddings is None:
            encoder = self._encoder("documents: load one, or give their embeddings")
            asked = [question for document in documents for question in document.questions]
            known = encoder.encode_query(asked) if asked and known is None else known
            embeddings = encoder.encode_document([document.text for document in documents])
        with self._changing() as database:
            replaced = delete_documents(database, list(dict.fromkeys(document.id for document in documents)))
            if replaced and not replace:
                raise EndxError(f"{self.path} already contains document {_some([*replaced])}: choose another id")
            insert(database, self._snapshot.info, documents, embeddings, known)
        erase_documents(self.path, self._snapshot.info.content, [*replaced.values()])
        return len(replaced)

    def delete(self, ids: str | Iterable[str], *, missing_ok: bool = False) -> int:
        """Deletes documents by one or several ids, with their texts and embeddings; returns the number of documents.

        Raises:
          InUse: as `add`.
          EndxError: an id is no string, or there is no document with it and `missing_ok` is false.
        """
        listed = as_items(ids, "ids", "a string or a list of strings")
        for number, name in enumerate(listed):
            as_text(name, f"ids[{number}]", may_be_empty=True)
        names = list(dict.fromkeys(listed))
        if not names:
            return 0
        with self._changing() as database:
            removed = delete_documents(database, names)
            if (missing := [name for name in names if name not in removed]) and not missing_ok:
                raise EndxError(f"{self.path} has no document {_some(missing)}: check the ids")
        erase_documents(self.path, self._snapshot.info.content, [*removed.values()])
        return len(removed)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        """Context of a write transaction in the opened index; the snapshot is up to date afterwards."""
        for folder, reason in READ_ONLY.items():
            if cache_folder(folder).resolve() in self.path.resolve().parents:
                raise ReadOnly(f"{self.source} {reason}")
        if not self.path.is_file():
            raise InUse(f"{self.path} was moved or deleted since it was opened: restore it, or open another index")
        with changing(self.path) as database:
            same = os.path.samestat(self.path.stat(), self._file)  # a copy has the same content, but isn't read here
            if not same or info_of(database, self.path).content != self._snapshot.info.content:
                raise InUse(f"{self.path} was replaced since it was opened: open it again (restart a server)")
            yield database
            store_info(database, changed=True)
        _ = self.snapshot


def _version(store: Store) -> int:
    """Returns a number that changes when another connection changes the index."""
    ((version,),) = store.rows("PRAGMA data_version")
    return version


def _checked(documents: Document | Iterable[Document]) -> list[Document]:
    """Returns documents as a list; raises EndxError unless they have texts of strings and distinct ids."""
    wanted = "a Document or a list of them"
    listed = [documents] if isinstance(documents, Document) else as_items(documents, "documents", wanted)
    for number, document in enumerate(listed):
        if not isinstance(document, Document):
            raise EndxError(f"documents[{number}] is {shown(document)}: give a Document with id and text")
        as_text(document.id, f"the id of documents[{number}]", may_be_empty=True)
        of, questions = f"document {document.id!r}", cast(object, document.questions)
        if not isinstance(questions, tuple | list) or not isinstance(document.metadata, Mapping):
            raise EndxError(f"{of}: questions must be a tuple of strings, and metadata a dictionary")
        for what, text in (("text", document.text), *(("known question", one) for one in questions)):
            as_text(text, f"the {what} of {of}", may_be_empty=True)
    names = collections.Counter(document.name for document in listed)
    if twice := [name for name, count in names.items() if count > 1]:
        raise EndxError(f"document {_some(twice)} occurs twice: ids must be unique")
    return listed


def _some(ids: Sequence[str]) -> str:
    """Formats the first ids."""
    return ", ".join(map(repr, ids[:3])) + (f" and {len(ids) - 3:,} others" if len(ids) > 3 else "")
