"""Files of an index: numbered shards of embeddings with their documents, and a manifest that names them.

    manifest.json             the fields of `Manifest`; written last, so an index with a manifest is complete
    embeddings-00000.npy      [n, E], float32, float16 or int8
    scales-00000.npy          float32 [n], with int8 only: row i has the embedding embeddings[i] * scales[i]
    documents-00000.jsonl     a line {"id", "text", "metadata"} for each row in the same order; metadata is optional
    .lock                     held by the process that changes the index

Rows are numbered over all shards in the manifest's order. A row keeps its number within one generation of the index.
Files are never overwritten: a change writes new files, replaces the manifest, and removes the files that it no longer
names. A process killed at any point leaves the old state or the new one, and files that the next change removes.
"""

import dataclasses
import json
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from endx_jax import json_files
from endx_jax.data.documents import Document
from endx_jax.errors import EndxError
from endx_jax.files import replacing, write_text
from endx_jax.numerics import Quantized

VERSION = 2
MANIFEST, LOCK = "manifest.json", ".lock"
COSINE, INNER_PRODUCT = "cosine", "inner product"
PRECISIONS = ("float32", "float16", "int8")

# Files of shards, unfinished ones included; and files of `retrieval.approximate`.
_SHARD_FILE = re.compile(
    r"\.?((embeddings|scales)-\d{5,}\.npy|documents-\d{5,}\.jsonl)(\..+)?|\.manifest\.json\..+", re.ASCII
)
_ENGINE_FILE = re.compile(r"faiss-.*\.(index|part)")


def metric_of(*, cosine: bool) -> str:
    """Returns the name of the metric."""
    return COSINE if cosine else INNER_PRODUCT


class Shard(NamedTuple):
    """An entry of the manifest: a shard's number, with five or more digits, and its number of documents."""

    name: str
    documents: int


@dataclasses.dataclass(frozen=True)
class Manifest:
    """Description of an index.

    Attributes:
      width: E of its embeddings.
      precision: precision of its embeddings: float32, float16 or int8.
      metric: `cosine` (embeddings have unit norm) or `inner product`. Both are computed as inner products.
      model: model that encoded the documents: at least `name` and `identity` (see `inference.identity`), and `step` of
        a run.
      shards: shards in the order of rows.
      deleted: deleted rows, ascending.
      corpus: source of the documents: `path`, and for the index of a run the `part` of it; may be empty.
      generation: number of times that rows were renumbered.
      changed: true if documents were added or deleted since the index was written.
    """

    width: int
    precision: str
    metric: str
    model: Mapping[str, Any]
    shards: tuple[Shard, ...]
    deleted: tuple[int, ...] = ()
    corpus: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    generation: int = 0
    changed: bool = False


def write_manifest(folder: pathlib.Path, manifest: Manifest) -> None:
    """Writes `manifest.json` atomically."""
    fields = dataclasses.asdict(manifest)
    fields["shards"] = [shard._asdict() for shard in manifest.shards]
    write_text(folder / MANIFEST, json.dumps({"version": VERSION, **fields}, ensure_ascii=False) + "\n")


def read_manifest(folder: pathlib.Path) -> Manifest:
    """Reads `manifest.json`.

    Raises:
      EndxError: the manifest is missing or of another version, or a field is missing or wrong.
    """
    path = folder / MANIFEST
    if not os.path.lexists(path):
        raise EndxError(
            f"{folder} contains no index (no {MANIFEST}): make one with `endx train`, `endx evaluate` or `endx encode`"
        )
    fields, where = json_files.read(path), str(path)
    if "version" not in fields and (folder / "index" / MANIFEST).is_file():  # a workdir, which has a manifest too
        raise EndxError(f"{folder} is the workdir of a run, not an index: use {folder / 'index'}")
    version = json_files.value(fields, "version", where)
    if version != VERSION:
        raise EndxError(
            f"{folder} has an index of version {json_files.shown(version)}, but this endx_jax reads version {VERSION}: "
            "remove it and make it again with `endx evaluate` or `endx encode`"
        )
    entries = json_files.list_at(fields, "shards", where)
    shards = tuple(_shard(entry, f"{where}: shards[{n}]") for n, entry in enumerate(entries))
    if len({shard.name for shard in shards}) < len(shards):
        raise EndxError(f"{where}: 'shards' contains a name twice")
    deleted = json_files.list_at(fields, "deleted", where, [])
    _check_deleted(deleted, sum(shard.documents for shard in shards), f"{where}: 'deleted'")
    # Manifests of version 0.1.0 lack the field. An unchanged index has at most one shard there.
    seems_changed = bool(deleted) or [shard.name for shard in shards] not in ([], ["00000"])
    changed = json_files.value(fields, "changed", where, seems_changed)
    if not isinstance(changed, bool):
        raise EndxError(f"{where}: 'changed' must be true or false")
    return Manifest(
        width=json_files.whole(json_files.value(fields, "width", where), f"{where}: 'width'", least=1),
        precision=_one_of(json_files.value(fields, "precision", where), PRECISIONS, f"{where}: 'precision'"),
        metric=_one_of(json_files.value(fields, "metric", where), (COSINE, INNER_PRODUCT), f"{where}: 'metric'"),
        model=_model(json_files.value(fields, "model", where), f"{where}: 'model'"),
        shards=shards,
        deleted=tuple(deleted),
        corpus=json_files.mapped(json_files.value(fields, "corpus", where, {}), f"{where}: 'corpus'"),
        generation=json_files.whole(json_files.value(fields, "generation", where, 0), f"{where}: 'generation'"),
        changed=changed,
    )


def _shard(entry: object, where: str) -> Shard:
    name = json_files.text_at(entry, "name", where)
    if not re.fullmatch(r"\d{5,18}", name, re.ASCII):
        raise EndxError(f"{where}: 'name' must be a number of five digits or more, not {name!r:.40}")
    return Shard(name, json_files.whole(json_files.value(entry, "documents", where), f"{where}: 'documents'", least=1))


def _check_deleted(deleted: Sequence[object], rows: int, where: str) -> None:
    before = -1
    for row in deleted:
        if type(row) is not int or not before < row < rows:
            raise EndxError(f"{where} must list rows below {rows} in ascending order, not {json_files.shown(row)}")
        before = row


def _model(value: object, where: str) -> dict:
    model = json_files.mapped(value, where)
    for key in ("name", "identity"):
        json_files.text(model.get(key, ""), f"{where}: {key!r}", may_be_empty=True)
    return model


def _one_of(value: object, known: Sequence[str], where: str) -> str:
    if value not in known:
        raise EndxError(f"{where} must be {' or '.join(map(repr, known))}, not {json_files.shown(value)}")
    return str(value)


def clear(folder: pathlib.Path, manifest: Manifest | None, *, engines: bool = False) -> None:
    """Removes shard files that the manifest does not name: of earlier states and of interrupted writes.

    Args:
      folder: folder of the index; the caller holds its lock.
      manifest: present manifest; None if there is none.
      engines: whether to remove the files of `retrieval.approximate` as well, as after rows are renumbered.
    """
    shards = manifest.shards if manifest else ()
    kept = {name for shard in shards for name in shard_files(shard.name, manifest.precision if manifest else "")}
    for entry in os.scandir(folder):
        obsolete = _SHARD_FILE.fullmatch(entry.name) and entry.name not in kept
        if obsolete or (engines and _ENGINE_FILE.fullmatch(entry.name)):
            os.unlink(entry)


def next_number(shards: Sequence[Shard]) -> int:
    """Returns the number of the next shard."""
    return 1 + max((int(shard.name) for shard in shards), default=-1)


def shard_files(name: str, precision: str) -> tuple[str, ...]:
    """Returns the names of a shard's files in the order of writing: the last one completes the shard."""
    scales = (f"scales-{name}.npy",) if precision == "int8" else ()
    return f"embeddings-{name}.npy", *scales, f"documents-{name}.jsonl"


def precision_of(embeddings: np.ndarray | Quantized) -> str:
    """Returns the precision of embeddings.

    Raises:
      EndxError: an index does not support the dtype.
    """
    found = str((embeddings.codes if isinstance(embeddings, Quantized) else embeddings).dtype)
    if found not in PRECISIONS or (found == "int8") != isinstance(embeddings, Quantized):
        raise EndxError(f"an index does not support embeddings in {found}: use float32, float16, or int8 with scales")
    return found


def write_shard(
    folder: pathlib.Path, number: int, embeddings: np.ndarray | Quantized, documents: Sequence[Document]
) -> Shard:
    """Writes a shard's files, each atomically, the documents last.

    Args:
      folder: folder of the index; created if missing.
      number: number of the shard.
      embeddings: float32 or float16 [n, E], or int8 with its scales.
      documents: n documents.

    Returns:
      Its entry for the manifest.

    Raises:
      EndxError: the folder can't be written; an embedding is not finite, or not of a precision that an index holds;
        or a text can't be encoded as UTF-8.
    """
    rows, *scales = embeddings if isinstance(embeddings, Quantized) else (embeddings,)
    if len(rows) != len(documents):
        raise ValueError(f"{len(rows)} embeddings for {len(documents)} documents")
    finite = np.isfinite(scales[0] if scales else rows.sum(axis=1, dtype=np.float32))
    if not finite.all():
        raise EndxError(f"the embedding of document {documents[int(finite.argmin())].id!r} contains nan or infinity")
    shard = Shard(f"{number:05d}", len(documents))
    *arrays, lines = shard_files(shard.name, precision_of(embeddings))
    for name, array in zip(arrays, (rows, *scales), strict=True):
        with replacing(folder / name, "wb") as stream:
            np.save(stream, array, allow_pickle=False)
    with replacing(folder / lines) as stream:
        for document in documents:
            stream.write(_line(document))
    return shard


def _line(document: Document) -> str:
    fields: dict[str, Any] = {"id": document.id, "text": document.text}
    if document.metadata:
        fields["metadata"] = dict(document.metadata)
    line = json.dumps(fields, ensure_ascii=False) + "\n"
    try:
        line.encode()
    except UnicodeEncodeError:
        raise EndxError(f"document {document.id!a} holds a lone surrogate, which UTF-8 can't encode") from None
    return line
