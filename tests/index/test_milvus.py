import pathlib
import re

import numpy as np
import pytest
from helpers import refused

from endx_jax.data.sets.documents import Document
from endx_jax.errors import EndxError
from endx_jax.index import milvus
from endx_jax.index.index import Index, write_index
from endx_jax.index.index_file import COSINE, INNER_PRODUCT
from endx_jax.index.milvus import PublishResult, publish
from endx_jax.numerics import Quantized, dequantize, quantize

pytest.importorskip("pymilvus", reason="pymilvus is not installed")
pytest.importorskip("milvus_lite", reason="milvus-lite is not installed")

MODEL = {"name": "m", "identity": "1" * 64}
ODD = ["a b", "d/1", 'q"uo\\te', "é🙂", "' or 1 == 1", "%_*", "0", "x" * 300, "line\nbreak", "]"]
DRAW = np.random.default_rng(0)
EMBEDDINGS = DRAW.normal(size=(80, 16)).astype(np.float32)
QUESTIONS = DRAW.normal(size=(20, 16)).astype(np.float32)


def documents(count=80) -> list[Document]:
    ids = [*ODD, *(f"d{n}" for n in range(len(ODD), count))]
    metadata = [{}, {"title": "T é", "year": 1999, "score": 0.5, "old": True}]
    return [Document(name, f"text of {name}", metadata[n % 2]) for n, name in enumerate(ids)]


def index_of(folder, embeddings=EMBEDDINGS, metric=INNER_PRODUCT, model=MODEL) -> Index:
    count = len(embeddings.codes if isinstance(embeddings, Quantized) else embeddings)
    write_index(folder, embeddings, documents(count), metric=metric, model=model)
    return Index(folder)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(milvus, "BATCH", 32)


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> str:
    return str(tmp_path_factory.mktemp("milvus") / "new" / "all.db")


@pytest.fixture
def to(address, request) -> tuple[str, str]:
    """Address and a collection for each test."""
    return address, re.sub(r"\W", "_", request.node.name)


def search(to, questions, k) -> list[list[tuple[Document, float]]]:
    """Documents and scores found by Milvus' own client."""
    address, name = to
    with milvus._client(address, "") as client:
        client.load_collection(name)
        found = client.search(
            name,
            [*np.asarray(questions, np.float32)],
            limit=k,
            anns_field="embedding",
            output_fields=["document", "text", "metadata"],
            consistency_level="Strong",
        )
    return [
        [
            (Document(hit["entity"]["document"], hit["entity"]["text"], hit["entity"]["metadata"]), hit["distance"])
            for hit in hits
        ]
        for hits in found
    ]


@pytest.fixture
def flat(monkeypatch):
    """Has collections searched exactly, so that results can be compared."""
    monkeypatch.setattr(milvus, "INDEX_TYPE", "FLAT")


@pytest.mark.usefixtures("flat")
@pytest.mark.parametrize("metric", [COSINE, INNER_PRODUCT])
def test_exact_search_in_the_database_finds_what_the_index_finds(to, tmp_path, metric):
    embeddings = EMBEDDINGS
    if metric == COSINE:
        embeddings = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    index = index_of(tmp_path / "index", embeddings, metric)
    assert publish(index, *to) == PublishResult(80, removed=0, cut=0, others=0)
    found, exact = search(to, QUESTIONS, 10), index.snapshot.corpus.search(QUESTIONS, 10)
    stored = dict(index.snapshot)
    expected = [[stored[row] for row in rows] for rows in exact.rows]
    assert [[document for document, _ in hits] for hits in found] == expected
    scale = np.linalg.norm(QUESTIONS, axis=1, keepdims=True) if metric == COSINE else 1
    np.testing.assert_allclose([[score for _, score in hits] for hits in found], exact.scores / scale, rtol=1e-4)


@pytest.mark.usefixtures("flat")
def test_rounded_embeddings_are_published_as_what_they_stand_for(to, tmp_path):
    rounded = Quantized(*map(np.asarray, quantize(EMBEDDINGS)))
    publish(index_of(tmp_path / "index", rounded), *to)
    values = dequantize(rounded)
    (hits,) = search(to, QUESTIONS[:1], 80)
    expected = dict(zip((document.id for document in documents()), values @ QUESTIONS[0], strict=True))
    assert len(hits) == 80
    np.testing.assert_allclose([score for _, score in hits], [expected[document.id] for document, _ in hits], atol=1e-4)


def test_again_nothing_changes_and_changes_are_followed(to, tmp_path):
    index = index_of(tmp_path / "index")
    publish(index, *to)
    assert publish(index, *to) == PublishResult(80, removed=0, cut=0, others=0)
    index.delete([*ODD[1:], "d79"])
    index.add([Document("a b", "another text"), Document("d79", "again")], EMBEDDINGS[:2] + 9, replace=True)
    assert publish(Index(tmp_path / "index"), *to) == PublishResult(71, removed=9, cut=0, others=0)
    (hits,) = search(to, np.ones((1, 16)), 2)
    assert {document.id: document.text for document, _ in hits} == {"a b": "another text", "d79": "again"}
    assert publish(index_of(tmp_path / "part", EMBEDDINGS[:50]), *to) == PublishResult(50, 0, 0, others=30)


def test_values_beyond_the_limits_of_milvus_are_cut_or_refused(to, tmp_path):
    def publish_all(*documents):
        write_index(tmp_path / "index", EMBEDDINGS[: len(documents)], documents, metric=COSINE, model=MODEL)
        return publish(Index(tmp_path / "index"), *to)

    long = Document("long", "x" * (milvus.LARGEST - 1) + "éé")
    assert publish_all(long, Document("short", "")) == PublishResult(2, 0, cut=1, others=0)
    texts = {document.id: document.text for document, _ in search(to, QUESTIONS[:1], 2)[0]}
    assert texts == {"long": "x" * (milvus.LARGEST - 1), "short": ""}
    with pytest.raises(EndxError, match="the id of document 'yyy.* has 70,000 bytes; Milvus keeps 65,535"):
        publish_all(Document("y" * 70_000, "text"))
    refused("the metadata of document 'z' has 70,009 bytes", publish_all, Document("z", "text", {"n": "y" * 70_000}))


def test_a_collection_of_something_else_is_refused(to, tmp_path):
    publish(index_of(tmp_path / "index", EMBEDDINGS[:20]), *to)
    for change, difference in (
        ({"model": {"name": "n", "identity": "2" * 64}}, "has model 1{64} m and not 2{64} n: choose another"),
        ({"metric": COSINE}, "has metric IP and not COSINE: choose"),
        ({"embeddings": EMBEDDINGS[:20, :8], "model": MODEL | {"name": "new"}}, "has width 16 and not 8: choose"),
    ):
        refused(difference, publish, index_of(tmp_path / "index", **{"embeddings": EMBEDDINGS[:20]} | change), *to)
    assert len(search(to, QUESTIONS[:1], 100)[0]) == 20


def test_collections_made_by_others_and_the_server_s_own_refusals_are_one_line(to, tmp_path):
    pathlib.Path(to[0]).parent.mkdir(exist_ok=True)
    refused(r"all.db: .*not.*\Z", search, to, QUESTIONS, 3)
    with milvus._client(to[0], "") as client:
        client.create_collection(to[1], dimension=16, id_type="string", max_length=9)
    refused(
        "has model unknown and not 1{64} m; width None and not 16; metric", publish, index_of(tmp_path / "index"), *to
    )


@pytest.mark.parametrize(
    ("to", "name", "reason"),
    [
        ("there.db", "a-b", "collection 'a-b': use letters"),
        ("there.db", "0", "no digit at the start"),
        ("file.db", "a", "file.db is a file, but Milvus Lite needs a folder"),
        ("somewhere", "a", "address=somewhere is none: give http://HOST:PORT"),
        ("http://root:secret@host", "a", "contains a password"),
    ],
)
def test_addresses_that_can_be_none(tmp_path, to, name, reason):
    (tmp_path / "file.db").touch()
    with pytest.raises(EndxError, match=reason) as refusal:
        publish(index_of(tmp_path / "index"), str(tmp_path / to) if to.endswith(".db") else to, name)
    assert "secret" not in str(refusal.value)


def test_nobody_there_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(milvus, "TIMEOUT", 0.5)
    with pytest.raises(EndxError, match="http://127.0.0.1:9: Fail connecting to server"):
        publish(index_of(tmp_path / "index"), "http://127.0.0.1:9", "a")


def test_the_folder_is_free_when_the_collection_is_closed(tmp_path):
    index = index_of(tmp_path / "index", EMBEDDINGS[:20])
    for _ in range(2):
        assert publish(index, str(tmp_path / "a.db"), "a").documents == 20
        with pytest.raises(EndxError, match="a.db: "), milvus._client(str(tmp_path / "a.db"), "") as client:
            client.describe_collection("none")
