"""The index: an encoded corpus on disk that can be searched, added to and deleted from.

What its files are is said in `retrieval.shards`.
"""

import collections
import dataclasses
import itertools
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from endx_jax.data.documents import Document
from endx_jax.errors import EndxError
from endx_jax.files import locked
from endx_jax.retrieval.quantize import Quantized, quantize
from endx_jax.retrieval.search import Neighbours
from endx_jax.retrieval.shards import Manifest, precision_of, read_manifest, shard_files, write_manifest, write_shard
from endx_jax.retrieval.snapshot import Snapshot
from endx_jax.retrieval.stored import StoredShard

# Documents that shards are merged up to.
MERGED = 65536


def write_index(
    folder: pathlib.Path,
    embeddings: np.ndarray | Quantized,
    documents: Sequence[Document],
    *,
    metric: str,
    model: Mapping[str, Any],
) -> None:
    """Writes an index of one shard; an older one in its place stays whole until the new one is.

    Args:
      folder: to write.
      embeddings: float32 or float16 [N, E], or int8 with its scales.
      documents: N documents, each with an id of its own.
      metric: `cosine` or `inner product`.
      model: what identifies the model that encoded them: see `shards.Manifest`.

    Raises:
      EndxError: the folder can't be written, an embedding is not finite, or two documents have one id.
    """
    _check_distinct(documents)
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = pathlib.Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        shards = (write_shard(fresh, 0, embeddings, documents),) if documents else ()
        width = (embeddings.codes if isinstance(embeddings, Quantized) else embeddings).shape[1]
        write_manifest(fresh, Manifest(width, precision_of(embeddings), metric, model, shards))
        fresh.chmod(0o755)
        shutil.rmtree(folder, ignore_errors=True)
        fresh.rename(folder)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise


class Index:
    """An index that is open. One thread may change it while others search it: they see it before or after a change.

    Attributes:
      folder: where it is.
      snapshot: what it holds now. It does not change, so several questions can be put to one state.
    """

    def __init__(self, folder: str | os.PathLike):
        """Opens the index in `folder`; of its files only the manifest is read.

        Raises:
          EndxError: there is none, or a file of it is missing or not what the manifest says.
        """
        self.folder = pathlib.Path(folder)
        manifest = read_manifest(self.folder)
        self.snapshot = Snapshot(manifest, [StoredShard(self.folder, manifest, shard) for shard in manifest.shards])
        self._row_of: dict[str, int] | None = None

    @property
    def manifest(self) -> Manifest:
        """Its width, precision, metric and model, and more."""
        return self.snapshot.manifest

    def __len__(self) -> int:
        """How many documents there are."""
        return len(self.snapshot)

    def __contains__(self, identifier: str) -> bool:
        """Whether there is a document with this id. All ids are read when this is first asked."""
        return identifier in self._rows()

    def check_model(self, name: str, identity: str) -> None:
        """Raises EndxError unless the index was encoded by the model of this identity; the message names both."""
        model = self.manifest.model
        if model.get("identity") != identity:
            raise EndxError(
                f"{self.folder} was encoded by {model.get('name')} (identity {str(model.get('identity'))[:12]}), which "
                f"is another model than {name} ({identity[:12]}): search it with that one, or encode the documents anew"
            )

    def search(self, questions: np.ndarray, k: int) -> Neighbours:
        """The best k documents for questions [Q, E], as rows: see `Snapshot.search`."""
        return self.snapshot.search(questions, k)

    def document(self, row: int) -> Document:
        """The document of a row. Rows keep their numbers, and those of deleted documents stay readable."""
        return self.snapshot.document(row)

    def add(self, documents: Sequence[Document], embeddings: np.ndarray, *, replace: bool = False) -> None:
        """Adds documents, on disk too. What was there is not written anew, but for small shards, which are merged.

        Args:
          documents: n documents.
          embeddings: float32 [n, E]; rounded as those of the index are.
          replace: whether documents take the place of those with their ids.

        Raises:
          EndxError: an id is there already, or twice among the new; the embeddings are of another width or not finite;
            or another process changed the index since it was opened.
        """
        _check_distinct(documents)
        rows, first = self._rows(), len(self.snapshot.living)
        known = [document.id for document in documents if document.id in rows]
        if known and not replace:
            raise EndxError(f"{self.folder} holds document {_some(known)} already: delete it first, or give another id")
        if np.shape(embeddings) != (len(documents), self.manifest.width):
            raise EndxError(
                f"embeddings are {np.shape(embeddings)} for {len(documents)} documents and an index of width "
                f"{self.manifest.width}: encode them with the index's model, {self.manifest.model.get('name')}"
            )
        if documents:
            self._change(documents, _rounded(embeddings, self.manifest.precision), {rows[name] for name in known})
            rows.update((document.id, first + n) for n, document in enumerate(documents))

    def delete(self, ids: Iterable[str]) -> None:
        """Deletes documents, on disk too: their rows are marked as empty.

        Raises:
          EndxError: there is no document with one of the ids, or another process changed the index since it was opened.
        """
        rows, ids = self._rows(), list(dict.fromkeys(ids))
        unknown = [name for name in ids if name not in rows]
        if unknown:
            raise EndxError(f"{self.folder} holds no document {_some(unknown)}")
        if ids:
            self._change([], None, {rows[name] for name in ids})
            for name in ids:
                del rows[name]

    def _rows(self) -> dict[str, int]:
        """Ids of all documents, and their rows."""
        if self._row_of is None:
            self._row_of = {document.id: row for row, document in self.snapshot.documents()}
        return self._row_of

    def _change(self, documents: Sequence[Document], embeddings: Any, deleted: set[int]) -> None:
        """Writes new documents, if there are any, then the manifest; then takes up the new state."""
        with locked(self.folder):
            if read_manifest(self.folder) != self.manifest:
                raise EndxError(f"{self.folder} was changed by another process: open it again, then repeat the change")
            old = self.snapshot
            kept = _unmerged(old.shards, len(documents))
            shards, merged = list(old.shards[:kept]), old.shards[kept:]
            if documents:
                number = 1 + max((int(shard.entry.name) for shard in old.shards), default=-1)
                shards.append(self._join(number, merged, documents, embeddings))
            manifest = dataclasses.replace(
                self.manifest,
                shards=tuple(shard.entry for shard in shards),
                deleted=tuple(sorted({*self.manifest.deleted, *deleted})),
            )
            write_manifest(self.folder, manifest)
            self.snapshot = Snapshot(manifest, shards, before=old)
            for shard in merged:
                for name in shard_files(shard.entry.name, manifest.precision):
                    (self.folder / name).unlink(missing_ok=True)

    def _join(self, number: int, merged: Sequence[StoredShard], documents: Sequence[Document], embeddings: Any):
        """One shard of several and of what comes after them."""
        rows = jax.tree.map(lambda *parts: np.concatenate(parts), *(shard.rows for shard in merged), embeddings)
        entry = write_shard(self.folder, number, rows, [*itertools.chain(*(m.documents for m in merged)), *documents])
        return StoredShard(self.folder, self.manifest, entry)


def _unmerged(shards: Sequence[StoredShard], added: int) -> int:
    """How many of the shards stay as they are when documents are added to them.

    A shard is merged into one at least as large, so a document is written anew at most once for each doubling.
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
        raise EndxError(f"document {_some(twice)} is there twice: every document needs an id of its own")


def _some(ids: Sequence[str]) -> str:
    """A few of the ids."""
    return ", ".join(map(repr, ids[:3])) + (f" and {len(ids) - 3:,} others" if len(ids) > 3 else "")
