"""Publication of an index to Milvus: its documents and embeddings are copied to a collection."""

import contextlib
import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tqdm

from endx_jax.data.sets.documents import Document
from endx_jax.errors import EndxError, install
from endx_jax.index.index import Index
from endx_jax.index.index_file import COSINE, INNER_PRODUCT, IndexInfo
from endx_jax.index.store import Store
from endx_jax.settings import require

if TYPE_CHECKING:
    from pymilvus import MilvusClient

METRICS = {COSINE: "COSINE", INNER_PRODUCT: "IP"}
# The server chooses the index of the embeddings, which is approximate.
INDEX_TYPE = "AUTOINDEX"

# Largest string in bytes. Messages may have 64 MB, enough for a batch of documents with three such fields each.
LARGEST = 65535
BATCH = 256
DELETED = 4096  # ids that are deleted together
TIMEOUT = 60.0  # seconds, of a request

# Property of a collection that holds the identity and the name of its model.
MODEL = "endx.model"


class PublishResult(NamedTuple):
    """Result of `publish`.

    Attributes:
      documents: number of texts of the index, documents or their passages, all now in the collection.
      removed: number of documents deleted from the index, now deleted from the collection as well.
      cut: number of texts that were cut to `LARGEST` bytes.
      others: number of texts in the collection that are not of this index.
    """

    documents: int
    removed: int
    cut: int
    others: int


def publish(index: Index, address: str, name: str, *, token: str = "", progress: bool = False) -> PublishResult:
    """Copies an index to a collection, replacing texts with the same ids, so that it can be repeated.

    The fields of the collection are `id` (the primary key: `Document.name`), `document` (the id), `text`, `metadata`
    (JSON) and `embedding` (float32).

    Args:
      index: open index.
      address: `http://HOST:PORT` or `https://...` of a server or cluster; or a path that ends in `.db`, a folder that
        Milvus Lite keeps in this process, created if missing.
      name: name of the collection, created if missing.
      token: credentials of the server, such as `user:password`.
      progress: shows a progress bar.

    Raises:
      EndxError: pymilvus is not installed; the address or name is invalid; the collection has another model, width or
        metric, each named; the id or metadata of a document is too long; or the server refuses.
    """
    _check(address, name)
    store = Store(index.path)
    require(
        not [*store.rows("SELECT 1 FROM tokens LIMIT 1")],
        f"{index.path} holds token vectors, which Milvus Lite refuses and endx publish does not copy: write those of "
        "encode_document to Qdrant, Vespa or fast-plaid, or publish an index of a model with one vector for each text",
    )
    snapshot, cut, kept = index.snapshot, 0, dict[str, list[str]]()
    changed = {name for (name,) in store.rows("SELECT id FROM deleted")}  # some were added again, with fewer passages
    with _client(address, token) as client:
        _open(client, name, index.snapshot.info)
        with tqdm.tqdm(total=snapshot.passages, unit="text", disable=not progress, leave=False) as bar:
            passages = iter(snapshot)
            while part := [*itertools.islice(passages, BATCH)]:
                rows = [_row(document, snapshot.vectors(row, row + 1)[0]) for row, document in part]
                client.upsert(name, rows, timeout=TIMEOUT)
                cut += sum(row["text"] != document.text for row, (_, document) in zip(rows, part, strict=True))
                for _, document in part:
                    if document.id in changed:
                        kept.setdefault(document.id, []).append(document.name)
                bar.update(len(rows))
        names = sorted(changed)
        for some in (names[start : start + DELETED] for start in range(0, len(names), DELETED)):
            # pymilvus does not escape ids itself.
            kept_ids = [one for document in some for one in kept.get(document, ())]
            ids, others = (json.dumps(listed, ensure_ascii=False) for listed in (some, kept_ids))
            client.delete(name, filter=f"document in {ids} and id not in {others}", timeout=TIMEOUT)
        client.flush(name, timeout=TIMEOUT)
        client.load_collection(name, timeout=TIMEOUT)
        stored = client.query(name, output_fields=["count(*)"], timeout=TIMEOUT, consistency_level="Strong")
    count = snapshot.passages
    return PublishResult(count, len(changed - kept.keys()), cut, stored[0]["count(*)"] - count)


@contextlib.contextmanager
def _client(address: str, token: str) -> Iterator["MilvusClient"]:
    """Yields a client, and raises the errors of pymilvus as one line; on exit, frees the folder of Milvus Lite."""
    try:
        from pymilvus import MilvusClient, MilvusException
    except ImportError:
        raise EndxError(f"publishing needs pymilvus: {install('publish')}") from None
    try:
        client = MilvusClient(address, token=token, timeout=TIMEOUT)
        try:
            yield client
        finally:
            client.close()
            if address.endswith(".db"):
                from milvus_lite.server_manager import server_manager_instance

                server_manager_instance.release_server(address)
    except MilvusException as failure:
        raise EndxError(f"{address}: {' '.join(failure.message.split())}") from None


def _open(client: "MilvusClient", name: str, info: IndexInfo) -> None:
    """Creates the collection, or checks that the existing one matches the index."""
    model = info.model
    wanted: dict[str, Any] = {
        "model": f"{model['identity']} {model['name']}",
        "width": info.width,
        "metric": METRICS[info.metric],
        "fields": "document, embedding, id, metadata, text",
    }
    if not client.has_collection(name, timeout=TIMEOUT):
        _create(client, name, wanted)
    collection = client.describe_collection(name, timeout=TIMEOUT)
    fields = {field["name"]: field for field in collection["fields"]}
    indexed = client.describe_index(name, index_name="embedding", timeout=TIMEOUT) or {}
    existing = {
        "model": collection["properties"].get(MODEL, "unknown"),
        "width": fields.get("embedding", {}).get("params", {}).get("dim"),
        "metric": indexed.get("metric_type"),
        "fields": ", ".join(sorted(fields)),
    }
    if existing["model"].split(" ")[0] == model["identity"]:
        existing["model"] = wanted["model"]  # the name of a model may change
    differences = [f"{key} {existing[key]} and not {wanted[key]}" for key in wanted if existing[key] != wanted[key]]
    if differences:
        raise EndxError(f"collection {name} has {'; '.join(differences)}: choose another collection")


def _create(client: "MilvusClient", name: str, wanted: Mapping[str, Any]) -> None:
    from pymilvus import DataType

    schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=LARGEST)
    schema.add_field("document", DataType.VARCHAR, max_length=LARGEST)
    schema.add_field("text", DataType.VARCHAR, max_length=LARGEST)
    schema.add_field("metadata", DataType.JSON)
    schema.add_field("embedding", DataType.FLOAT_VECTOR, dim=wanted["width"])
    indexes = client.prepare_index_params()
    settings = {"index_type": INDEX_TYPE, "metric_type": wanted["metric"]}
    indexes.add_index("embedding", index_name="embedding", **settings)
    properties = {MODEL: wanted["model"]}
    client.create_collection(name, schema=schema, index_params=indexes, properties=properties, timeout=TIMEOUT)


def _check(address: str, name: str) -> None:
    if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]{0,254}", name):
        raise EndxError(f"collection {name!r}: use letters, digits and underscores, and no digit at the start")
    if address.endswith(".db"):
        if os.path.isfile(address):
            raise EndxError(f"address={address} is a file, but Milvus Lite needs a folder: choose another path")
        os.makedirs(os.path.dirname(address) or ".", exist_ok=True)
    elif not re.match("https?://", address):
        raise EndxError(f"address={address} is none: give http://HOST:PORT, or a path that ends in .db")
    elif "@" in address:
        raise EndxError("address contains a password, which other users could read: set MILVUS_TOKEN instead")


def _row(document: Document, embedding: np.ndarray) -> dict[str, Any]:
    metadata = dict(document.metadata)
    for what, text in (("id", document.id), ("metadata", json.dumps(metadata, ensure_ascii=False))):
        size = len(text.encode())
        if size > LARGEST:
            raise EndxError(f"the {what} of document {document.id!r:.60} has {size:,} bytes; Milvus keeps {LARGEST:,}")
    text = document.text.encode()[:LARGEST].decode(errors="ignore")
    return {
        "id": document.name,
        "document": document.id,
        "text": text,
        "metadata": metadata,
        "embedding": embedding,
    }
