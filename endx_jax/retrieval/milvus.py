"""The way to a cluster: an index is copied to a collection of Milvus, at an address or in a folder of this machine."""

import contextlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import tqdm

from endx_jax.data.documents import Document
from endx_jax.errors import EndxError
from endx_jax.retrieval.index import Index
from endx_jax.retrieval.shards import COSINE, INNER_PRODUCT, Manifest
from endx_jax.retrieval.text_search import Answer

# How Milvus calls our metrics.
METRICS = {COSINE: "COSINE", INNER_PRODUCT: "IP"}
# Indexes that need no settings: what the server thinks best, which is approximate; and every vector, which is exact.
AUTO, FLAT = INDEX_TYPES = ("AUTOINDEX", "FLAT")

# Milvus keeps no longer strings, in bytes, and takes messages of 64 MB: in a batch of documents, each of three such
# fields and an embedding, there is room for the largest.
LARGEST = 65535
BATCH = 256
# Questions of one request; the answer holds k documents for each.
QUESTIONS = 64
TIMEOUT = 60.0  # seconds, of a request
# Ids that are deleted together.
DELETED = 4096
# Reads see what was written before.
STRONG = {"consistency_level": "Strong"}

# The property of a collection that says which model it is of: its identity, and its name.
MODEL = "endx.model"


class Published(NamedTuple):
    """What `Collection.publish` did.

    Attributes:
      documents: of the index, now in the collection.
      removed: documents that were deleted from the index and were still in the collection, at most.
      cut: documents of which the collection shows the beginning of the text only.
      others: documents in the collection that are not of this index.
    """

    documents: int
    removed: int
    cut: int
    others: int


class Collection:
    """A collection of Milvus.

    Its fields are `id` (the primary key), `text`, `metadata` (JSON) and `embedding` (float32, whatever the index
    holds). Milvus Lite lets one process at a time have its folder: closing the collection frees it.
    """

    def __init__(self, address: str, name: str, *, token: str = ""):
        """Connects.

        Args:
          address: `http://HOST:PORT` or `https://...` of a server or cluster; or a path that ends in `.db`, of a folder
            that Milvus Lite keeps in this process, made where it is missing.
          name: of the collection, which need not be there.
          token: what the server wants to know, such as `user:password`.

        Raises:
          EndxError: pymilvus is not installed, nobody answers, or the address or name can't be one.
        """
        try:
            from pymilvus import MilvusClient
        except ImportError:
            raise EndxError("publishing needs pymilvus: pip install 'endx_jax[publish]'") from None
        _check(address, name)
        self.address, self.name = address, name
        with self._refusals():
            self._client = MilvusClient(address, token=token, timeout=TIMEOUT)

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self._client.close()
        if self.address.endswith(".db"):
            from milvus_lite.server_manager import server_manager_instance

            server_manager_instance.release_server(self.address)

    def __len__(self) -> int:
        """How many documents there are."""
        with self._refusals():
            self._client.load_collection(self.name, timeout=TIMEOUT)
            rows = self._client.query(self.name, output_fields=["count(*)"], timeout=TIMEOUT, **STRONG)
        return rows[0]["count(*)"]

    def publish(self, index: Index, *, index_type: str = AUTO, progress: bool = False) -> Published:
        """Copies an index. Documents take the place of those with their ids, so doing it again changes nothing.

        Args:
          index: open.
          index_type: which index Milvus makes of the embeddings, `AUTOINDEX` or `FLAT`.
          progress: whether to show a bar.

        Raises:
          EndxError: the collection is there and of another model, width, metric or index type, each named; a document
            has an id or metadata longer than Milvus can keep; or the server refuses, in its words.
        """
        self._open(index.manifest, index_type)
        gone = {index.document(row).id for row in index.manifest.deleted}
        cut = 0
        with tqdm.tqdm(total=len(index), unit="text", disable=not progress, leave=False) as bar:
            for _, embeddings, documents in index.snapshot.parts(BATCH):
                rows = [_row(document, row) for document, row in zip(documents, embeddings, strict=True)]
                if rows:
                    with self._refusals():
                        self._client.upsert(self.name, rows, timeout=TIMEOUT)
                cut += sum(row["text"] != document.text for row, document in zip(rows, documents, strict=True))
                gone.difference_update(document.id for document in documents)
                bar.update(len(rows))
        names = sorted(gone)
        with self._refusals():
            for start in range(0, len(names), DELETED):
                self._client.delete(self.name, filter=_any_of(names[start : start + DELETED]), timeout=TIMEOUT)
            self._client.flush(self.name, timeout=TIMEOUT)
        return Published(len(index), len(names), cut, len(self) - len(index))

    def search(self, questions: np.ndarray, k: int) -> list[list[Answer]]:
        """The best k documents, or all if there are fewer, for questions [Q, E], encoded by the index's model."""
        with self._refusals():
            self._client.load_collection(self.name, timeout=TIMEOUT)
        found: list[list[Answer]] = []
        fields = {"anns_field": "embedding", "output_fields": ["text", "metadata"]}
        for start in range(0, len(questions), QUESTIONS):
            batch = [*np.asarray(questions[start : start + QUESTIONS], np.float32)]
            with self._refusals():
                answers = self._client.search(self.name, batch, limit=k, timeout=TIMEOUT, **fields, **STRONG)
            found += [[_answer(rank, hit) for rank, hit in enumerate(hits, 1)] for hits in answers]
        return found

    def _open(self, manifest: Manifest, index_type: str) -> None:
        """Makes the collection, or holds one that is there to be the same."""
        wanted: dict[str, Any] = {
            "model": f"{manifest.model['identity']} {manifest.model['name']}",
            "width": manifest.width,
            "metric": METRICS[manifest.metric],
            "index type": index_type,
        }
        with self._refusals():
            if not self._client.has_collection(self.name, timeout=TIMEOUT):
                self._create(wanted)
            there = self._describe()
        if there["model"].split(" ")[0] == wanted["model"].split(" ")[0]:
            there["model"] = wanted["model"]  # called by another name, it is the same
        differences = [f"{key} {there[key]} and not {wanted[key]}" for key in wanted if there[key] != wanted[key]]
        if differences:
            found = "; of ".join(differences)
            raise EndxError(f"{self.address}: collection {self.name} is of {found}; choose another --collection")

    def _create(self, wanted: Mapping[str, Any]) -> None:
        from pymilvus import DataType, MilvusClient

        schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=LARGEST)
        schema.add_field("text", DataType.VARCHAR, max_length=LARGEST)
        schema.add_field("metadata", DataType.JSON)
        schema.add_field("embedding", DataType.FLOAT_VECTOR, dim=wanted["width"])
        indexes = MilvusClient.prepare_index_params()
        settings = {"index_type": wanted["index type"], "metric_type": wanted["metric"]}
        indexes.add_index("embedding", index_name="embedding", **settings)
        self._client.create_collection(
            self.name, schema=schema, index_params=indexes, properties={MODEL: wanted["model"]}, timeout=TIMEOUT
        )

    def _describe(self) -> dict[str, Any]:
        """What there is of what `_open` wants."""
        collection = self._client.describe_collection(self.name, timeout=TIMEOUT)
        fields = {field["name"]: field for field in collection["fields"]}
        index = self._client.describe_index(self.name, index_name="embedding", timeout=TIMEOUT) or {}
        return {
            "model": collection["properties"].get(MODEL, "unknown"),
            "width": fields.get("embedding", {}).get("params", {}).get("dim"),
            "metric": index.get("metric_type"),
            "index type": index.get("index_type"),
        }

    @contextlib.contextmanager
    def _refusals(self) -> Iterator[None]:
        """Says in one line what pymilvus raises."""
        from pymilvus import MilvusException

        try:
            yield
        except MilvusException as failure:
            raise EndxError(f"{self.address}: {' '.join(failure.message.split())}") from None


def _check(address: str, name: str) -> None:
    if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]{0,254}", name):
        raise EndxError(f"collection {name!r}: Milvus takes letters, digits and underscores, and no digit at the start")
    if address.endswith(".db"):
        if os.path.isfile(address):
            raise EndxError(f"{address} is a file, and Milvus Lite keeps a folder since version 3: choose another name")
        os.makedirs(os.path.dirname(address) or ".", exist_ok=True)
    elif not re.match("https?://", address):
        raise EndxError(f"{address} is no address: give http://HOST:PORT, or a path that ends in .db")
    elif "@" in address:
        raise EndxError("the address holds a password, which others could read: give it in MILVUS_TOKEN")


def _any_of(names: Iterable[str]) -> str:
    """The filter for these ids, escaped as Milvus reads strings; pymilvus puts ids between quotes as they are."""
    return f"id in [{', '.join(json.dumps(name, ensure_ascii=False) for name in names)}]"


def _row(document: Document, embedding: np.ndarray) -> dict[str, Any]:
    metadata = dict(document.metadata)
    for what, size in (("id", len(document.id.encode())), ("metadata", len(json.dumps(metadata).encode()))):
        if size > LARGEST:
            raise EndxError(f"the {what} of document {document.id!r:.60} has {size:,} bytes; Milvus keeps {LARGEST:,}")
    text = document.text.encode()[:LARGEST].decode(errors="ignore")
    return {"id": document.id, "text": text, "metadata": metadata, "embedding": embedding}


def _answer(rank: int, hit: Mapping[str, Any]) -> Answer:
    fields = hit["entity"]
    return Answer(rank, hit["distance"], Document(hit["id"], fields["text"], fields["metadata"]))
