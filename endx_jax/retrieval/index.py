"""Index of an encoded corpus on disk: search, addition and deletion of documents.

`retrieval.shards` describes its files.
"""

import collections
import contextlib
import dataclasses
import itertools
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from endx_jax.data.documents import Document
from endx_jax.errors import EndxError, InUse
from endx_jax.files import locked
from endx_jax.json_files import shown
from endx_jax.numerics import Quantized, quantize
from endx_jax.retrieval.search import Neighbours
from endx_jax.retrieval.shards import (
    LOCK,
    MANIFEST,
    Manifest,
    clear,
    next_number,
    precision_of,
    read_manifest,
    write_manifest,
    write_shard,
)
from endx_jax.retrieval.snapshot import Snapshot, StoredShard

# Largest number of documents of a merged shard.
MERGED = 65536
# Share of deleted rows above which a change compacts the index.
DELETED = 0.5
# Seconds that a change waits for another process's change.
WAIT = 1.0
# Attempts to open an index that changes meanwhile.
ATTEMPTS = 100


def write_index(
    folder: pathlib.Path,
    embeddings: np.ndarray | Quantized,
    documents: Sequence[Document],
    *,
    metric: str,
    model: Mapping[str, Any],
    corpus: Mapping[str, Any] | None = None,
) -> None:
    """Writes an index of one shard, which atomically replaces an older index in the folder.

    Args:
      folder: folder of the index.
      embeddings: float32 or float16 [N, E], or int8 with its scales.
      documents: N documents with unique ids.
      metric: `cosine` or `inner product`.
      model: identifies the model that encoded them: see `shards.Manifest`.
      corpus: source of the documents: see `shards.Manifest`.

    Raises:
      InUse: the folder holds an index that was changed since it was written, is locked by another process, or can't be
        read: it may hold documents that exist nowhere else.
      EndxError: the folder can't be written, an embedding is not finite, or two documents have the same id.
    """
    _check_distinct(documents)
    width = (embeddings.codes if isinstance(embeddings, Quantized) else embeddings).shape[1]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as failure:
        raise EndxError(f"can't write {folder}: {failure.strerror}") from None
    with locked(folder / LOCK, wait=WAIT):
        old = _replaceable(folder)
        clear(folder, old)
        number = next_number(old.shards) if old else 0
        shards = (write_shard(folder, number, embeddings, documents),) if documents else ()
        generation = old.generation + 1 if old else 0
        new = Manifest(
            width, precision_of(embeddings), metric, model, shards, corpus=corpus or {}, generation=generation
        )
        write_manifest(folder, new)
        clear(folder, new, engines=True)


def _replaceable(folder: pathlib.Path) -> Manifest | None:
    """Returns the manifest of an index that may be replaced; None if there is none.

    Raises:
      InUse: the index must not be replaced.
    """
    if not os.path.lexists(folder / MANIFEST):
        return None
    try:
        found = read_manifest(folder)
    except EndxError as unreadable:
        raise InUse(f"{folder} was not replaced: {unreadable}") from None
    if found.changed:
        raise InUse(
            f"{folder} was not replaced, as documents were added or deleted since it was written; rename it and repeat"
        )
    return found


class Index:
    """An open index. One thread may change it while others search it: they see the state before or after a change.

    Attributes:
      folder: folder of the index.
      snapshot: its present state, immutable. A change may renumber rows (see `compact`): look up rows in the snapshot
        that found them.
    """

    def __init__(self, folder: str | os.PathLike):
        """Opens the index in `folder` and reads its manifest. Other processes may change the index meanwhile.

        Raises:
          EndxError: there is no index, or a file is missing or does not match the manifest.
        """
        self.folder = pathlib.Path(folder)
        self.snapshot, self._file = _open(self.folder)
        self._row_of: dict[str, int] | None = None
        self._held = False

    @property
    def manifest(self) -> Manifest:
        """Manifest of the present snapshot."""
        return self.snapshot.manifest

    @property
    def contents(self) -> str:
        """Number of documents and their source, for messages."""
        corpus = self.manifest.corpus
        source = f"{corpus.get('part', '')!s:.80}{shown(corpus['path'])}" if "path" in corpus else self.folder
        return f"{len(self):,} documents ({source}{', changed since' if self.manifest.changed else ''})"

    def __len__(self) -> int:
        """Returns the number of documents."""
        return len(self.snapshot)

    def __repr__(self) -> str:
        return f"Index({str(self.folder)!r}, {self.snapshot})"

    def __contains__(self, identifier: str) -> bool:
        """Returns true if the index has a document with this id. The first call reads all ids."""
        return identifier in self._rows()

    def get(self, identifier: str) -> Document | None:
        """Returns the document with this id, or None. The first call reads all ids."""
        row = self._rows().get(identifier)
        return None if row is None else self.document(row)

    def check_model(self, name: str, identity: str) -> None:
        """Raises EndxError unless the index was encoded by the model of this identity; the message names both."""
        model = self.manifest.model
        if model.get("identity") != identity:
            raise EndxError(
                f"{self.folder} was encoded by {model.get('name')} (identity {str(model.get('identity'))[:12]}), not "
                f"by {name} ({identity[:12]}): use the former, or encode the documents again"
            )

    def search(self, questions: np.ndarray, k: int) -> Neighbours:
        """Returns the best k documents for questions [Q, E], as rows: see `Snapshot.search`."""
        return self.snapshot.search(questions, k)

    def document(self, row: int) -> Document:
        """Returns the document of a row of the present snapshot, deleted ones included."""
        return self.snapshot.document(row)

    def add(self, documents: Sequence[Document], embeddings: np.ndarray, *, replace: bool = False) -> None:
        """Adds documents, on disk too. Only small shards are written again, merged with the new documents.

        Args:
          documents: n documents.
          embeddings: float32 [n, E]; rounded to the precision of the index.
          replace: whether documents replace those with the same ids.

        Raises:
          InUse: another process holds the index, or changed, replaced or moved it since it was opened.
          EndxError: an id exists already, or occurs twice among the new documents; or the embeddings have another width
            or are not finite.
        """
        _check_distinct(documents)
        rows = self._rows()
        known = [document.id for document in documents if document.id in rows]
        if known and not replace:
            raise EndxError(f"{self.folder} already contains document {_some(known)}: delete it, or choose another id")
        if np.shape(embeddings) != (len(documents), self.manifest.width):
            raise EndxError(
                f"embeddings have shape {np.shape(embeddings)} for {len(documents)} documents and an index of width "
                f"{self.manifest.width}: encode them with the index's model, {self.manifest.model.get('name')}"
            )
        if documents:
            self._change(documents, _rounded(embeddings, self.manifest.precision), known)

    def delete(self, ids: Iterable[str]) -> None:
        """Deletes documents. Searches no longer find them; their text leaves the files at the next compaction.

        Raises:
          InUse: as `add`.
          EndxError: there is no document with one of the ids.
        """
        rows, ids = self._rows(), list(dict.fromkeys(ids))
        unknown = [name for name in ids if name not in rows]
        if unknown:
            raise EndxError(f"{self.folder} has no document {_some(unknown)}: check the ids")
        if ids:
            self._change([], None, ids)

    def compact(self) -> int:
        """Removes deleted documents from the files, and the files of faiss; renumbers rows.

        `add` and `delete` do this too when more than half of the rows are deleted. Needs memory for the largest shard.

        Returns:
          The number of deleted documents that were removed.

        Raises:
          InUse: as `add`.
        """
        with self._locked():
            return self._compact()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keeps other processes from changing and replacing the index while the block runs.

        Raises:
          InUse: another process holds it.
          EndxError: the folder can't be written.
        """
        with locked(self.folder / LOCK, wait=WAIT):
            self._held = True
            try:
                yield
            finally:
                self._held = False

    def _rows(self) -> dict[str, int]:
        """Returns the ids of all documents with their rows."""
        if self._row_of is None:
            self._row_of = {document.id: row for row, document in self.snapshot.documents()}
        return self._row_of

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Holds the lock while the block changes the index, which must not have changed since it was opened."""
        outdated = InUse(
            f"{self.folder} was changed, replaced or moved by another process since it was opened: open it again "
            "(restart a server), then repeat the change"
        )
        if not self.folder.is_dir():
            raise outdated
        with contextlib.nullcontext() if self._held else locked(self.folder / LOCK, wait=WAIT):
            if not os.path.lexists(self.folder / MANIFEST) or _current(self.folder) != (self.manifest, self._file):
                raise outdated
            clear(self.folder, self.manifest)
            yield

    def _change(self, documents: Sequence[Document], embeddings: Any, deleted: Sequence[str]) -> None:
        """Writes new documents, if any, then the manifest; then switches to the new state."""
        with self._locked():
            old, rows = self.snapshot, self._rows()
            kept = _unmerged(old.shards, len(documents))
            shards, merged = list(old.shards[:kept]), old.shards[kept:]
            if documents:
                shards.append(self._join(next_number(self.manifest.shards), merged, documents, embeddings))
            manifest = dataclasses.replace(
                self.manifest,
                shards=tuple(shard.entry for shard in shards),
                deleted=tuple(sorted([*self.manifest.deleted, *(rows[name] for name in deleted)])),
                changed=True,
            )
            self._switch_to(manifest, shards, before=old)
            for name in deleted:
                del rows[name]
            rows.update((document.id, len(old.living) + n) for n, document in enumerate(documents))
            if len(manifest.deleted) > DELETED * len(self.snapshot.living):
                self._compact()

    def _compact(self) -> int:
        """Rewrites the shards that hold deleted documents, without them; the caller holds the lock."""
        old, number = self.snapshot, next_number(self.manifest.shards)
        if not self.manifest.deleted:
            return 0
        shards: list[StoredShard] = []
        for shard, living in old.parts_of_shards():
            if living.all():
                shards.append(shard)
            elif living.any():
                rows = jax.tree.map(lambda part, living=living: part[living], shard.rows)
                documents = [shard.documents[row] for row in np.flatnonzero(living).tolist()]
                shards.append(
                    StoredShard(self.folder, self.manifest, write_shard(self.folder, number, rows, documents))
                )
                number += 1
        manifest = dataclasses.replace(
            self.manifest,
            shards=tuple(shard.entry for shard in shards),
            deleted=(),
            generation=self.manifest.generation + 1,
            changed=True,
        )
        self._switch_to(manifest, shards, before=None)
        if self._row_of is not None:
            number_of = np.cumsum(old.living) - 1
            self._row_of = {name: int(number_of[row]) for name, row in self._row_of.items()}
        return len(old.manifest.deleted)

    def _switch_to(self, manifest: Manifest, shards: Sequence[StoredShard], before: Snapshot | None) -> None:
        """Writes a manifest, switches to its state, and removes the files that it does not name."""
        write_manifest(self.folder, manifest)
        self._file = _file_of_manifest(self.folder)
        self.snapshot = Snapshot(manifest, shards, before)
        clear(self.folder, manifest, engines=before is None)

    def _join(self, number: int, merged: Sequence[StoredShard], documents: Sequence[Document], embeddings: Any):
        """Writes one shard that holds several shards and new documents after them."""
        rows = jax.tree.map(lambda *parts: np.concatenate(parts), *(shard.rows for shard in merged), embeddings)
        entry = write_shard(self.folder, number, rows, [*itertools.chain(*(m.documents for m in merged)), *documents])
        return StoredShard(self.folder, self.manifest, entry)


def _open(folder: pathlib.Path) -> tuple[Snapshot, tuple[int, int]]:
    """Opens an index, again if it changes meanwhile; returns its state and the file of its manifest."""
    for _ in range(ATTEMPTS):
        manifest, file = _current(folder)
        try:
            shards = [StoredShard(folder, manifest, shard) for shard in manifest.shards]
        except EndxError:
            if _current(folder) == (manifest, file):
                raise
            continue
        if _current(folder) == (manifest, file):
            return Snapshot(manifest, shards), file
    raise InUse(f"{folder} changed {ATTEMPTS} times while it was opened: try again when fewer changes are made")


def _current(folder: pathlib.Path) -> tuple[Manifest, tuple[int, int]]:
    """Returns the manifest and its file, which identifies the index even if another is renamed to its folder."""
    return read_manifest(folder), _file_of_manifest(folder)


def _file_of_manifest(folder: pathlib.Path) -> tuple[int, int]:
    """Returns device and inode of the manifest's file."""
    try:
        status = os.stat(folder / MANIFEST)
    except OSError as failure:
        raise EndxError(f"{folder / MANIFEST} can't be read: {failure.strerror}") from None
    return status.st_dev, status.st_ino


def _unmerged(shards: Sequence[StoredShard], added: int) -> int:
    """Returns the number of leading shards that stay unchanged when documents are added.

    A shard is merged only into one at least twice as large, so a document is rewritten once per doubling at most.
    """
    kept, size = len(shards), added
    while kept and len(shards[kept - 1].documents) <= size <= MERGED - len(shards[kept - 1].documents):
        kept -= 1
        size += len(shards[kept].documents)
    return kept


def _rounded(embeddings: np.ndarray, precision: str) -> np.ndarray | Quantized:
    if precision == "int8":
        return jax.tree.map(np.asarray, quantize(jnp.asarray(embeddings, jnp.float32)))
    return np.asarray(embeddings, precision)


def _check_distinct(documents: Sequence[Document]) -> None:
    twice = [name for name, count in collections.Counter(document.id for document in documents).items() if count > 1]
    if twice:
        raise EndxError(f"document {_some(twice)} occurs twice: ids must be unique")


def _some(ids: Sequence[str]) -> str:
    """Formats the first ids."""
    return ", ".join(map(repr, ids[:3])) + (f" and {len(ids) - 3:,} others" if len(ids) > 3 else "")
