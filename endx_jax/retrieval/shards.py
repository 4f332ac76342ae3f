"""What an index is on disk: numbered shards of embeddings with their documents, and a manifest that names them.

    manifest.json             what `Manifest` holds; written last, so that an index is there when it is whole
    embeddings-00000.npy      [n, E], float32, float16 or int8
    scales-00000.npy          float32 [n], beside int8 only: row i stands for embeddings[i] * scales[i]
    documents-00000.jsonl     a line {"id", "text", "metadata"} for each row in the same order; metadata if any

Rows are counted over all shards in the manifest's order. A row keeps its number for as long as its index lives.
"""

import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from endx_jax.data.documents import Document
from endx_jax.errors import EndxError
from endx_jax.files import replacing, write_text
from endx_jax.retrieval.quantize import Quantized

VERSION = 2
MANIFEST = "manifest.json"
COSINE, INNER_PRODUCT = "cosine", "inner product"
PRECISIONS = ("float32", "float16", "int8")


def metric_of(*, cosine: bool) -> str:
    """The metric of embeddings that a model compares by cosine, or by inner product."""
    return COSINE if cosine else INNER_PRODUCT


class Shard(NamedTuple):
    """An entry of the manifest: which files, and how many documents they hold."""

    name: str
    documents: int


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What an index is.

    Attributes:
      width: E of its embeddings.
      precision: of its embeddings: float32, float16 or int8.
      metric: `cosine`, where embeddings are of unit norm, or `inner product`. They are compared by inner product in
        either case.
      model: what encoded it: at least `name` and `identity` (see `retrieval.identity`), and `step` of a run.
      shards: in the order of rows.
      deleted: rows that are not found any more, ascending.
      corpus: what the documents were read from and how; empty where nobody needs to know.
    """

    width: int
    precision: str
    metric: str
    model: Mapping[str, Any]
    shards: tuple[Shard, ...]
    deleted: tuple[int, ...] = ()
    corpus: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def write_manifest(folder: pathlib.Path, manifest: Manifest) -> None:
    """Writes `manifest.json`, whole or not at all."""
    fields = dataclasses.asdict(manifest)
    fields["shards"] = [shard._asdict() for shard in manifest.shards]
    write_text(folder / MANIFEST, json.dumps({"version": VERSION, **fields}, ensure_ascii=False) + "\n")


def read_manifest(folder: pathlib.Path) -> Manifest:
    """Reads `manifest.json`.

    Raises:
      EndxError: there is none, it is of another version, or it can't be read.
    """
    try:
        fields = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        version = fields.pop("version")
        if version != VERSION:
            raise EndxError(
                f"{folder} holds an index of version {version}, and this endx_jax reads version {VERSION}: "
                "make it again with `endx evaluate` or `endx encode`"
            )
        fields["shards"] = tuple(Shard(**entry) for entry in fields["shards"])
        fields["deleted"] = tuple(fields["deleted"])
        return Manifest(**fields)
    except FileNotFoundError:
        raise EndxError(
            f"{folder} holds no index (it has no {MANIFEST}): `endx train`, `endx evaluate` and `endx encode` make one"
        ) from None
    except (OSError, json.JSONDecodeError, UnicodeDecodeError, AttributeError, KeyError, TypeError) as failure:
        raise EndxError(f"{folder / MANIFEST} can't be read as an index's manifest: {failure!r}") from None


def shard_files(name: str, precision: str) -> tuple[str, ...]:
    """Names of a shard's files, in the order in which they are written: with the last one it is whole."""
    scales = (f"scales-{name}.npy",) if precision == "int8" else ()
    return f"embeddings-{name}.npy", *scales, f"documents-{name}.jsonl"


def precision_of(embeddings: np.ndarray | Quantized) -> str:
    """The precision of what `write_shard` is given.

    Raises:
      EndxError: an index can't hold it.
    """
    found = str((embeddings.codes if isinstance(embeddings, Quantized) else embeddings).dtype)
    if found not in PRECISIONS or (found == "int8") != isinstance(embeddings, Quantized):
        raise EndxError(f"an index can't hold embeddings in {found}: it takes float32, float16, or int8 with scales")
    return found


def write_shard(
    folder: pathlib.Path, number: int, embeddings: np.ndarray | Quantized, documents: Sequence[Document]
) -> Shard:
    """Writes a shard's files, each whole or not at all, the documents last.

    Args:
      folder: of the index; made where it is missing.
      number: of the shard.
      embeddings: float32 or float16 [n, E], or int8 with its scales.
      documents: n documents.

    Returns:
      Its entry for the manifest.

    Raises:
      EndxError: the folder can't be written; an embedding is not finite, or not of a precision that an index holds;
        or a text is none that UTF-8 can hold.
    """
    rows, *scales = embeddings if isinstance(embeddings, Quantized) else (embeddings,)
    if len(rows) != len(documents):
        raise ValueError(f"{len(rows)} embeddings for {len(documents)} documents")
    finite = np.isfinite(scales[0] if scales else rows.sum(axis=1, dtype=np.float32))
    if not finite.all():
        raise EndxError(f"the embedding of document {documents[int(finite.argmin())].id!r} holds nan or infinity")
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
        raise EndxError(f"document {document.id!a} holds half a surrogate pair, which is no text") from None
    return line
