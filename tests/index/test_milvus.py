import contextlib
import re

import numpy as np
import pytest
from refusals import check_refusal
from small_index import MODEL, make_index

from endx_jax.data.sets.documents import Document, passages_of
from endx_jax.index import milvus
from endx_jax.index.index import Index
from endx_jax.index.index_file import COSINE, INNER_PRODUCT
from endx_jax.index.milvus import PublishResult, publish
from endx_jax.numerics import Quantized, dequantize, quantize

pytest.importorskip("pymilvus", reason="pymilvus is not installed")
pytest.importorskip("milvus_lite", reason="milvus-lite is not installed")

ODD = ["a b", "d/1", 'q"uo\\te', "é🙂", "' or 1 == 1", "%_*", "0", "x" * 300, "line\nbreak", "]"]
DRAW, COUNT = np.random.default_rng(0), milvus.BATCH + 30
EMBEDDINGS = DRAW.normal(size=(COUNT, 16)).astype(np.float32)
QUESTIONS = DRAW.normal(size=(20, 16)).astype(np.float32)


def documents(count=COUNT) -> list[Document]:
    ids = [*ODD, *(f"d{n}" for n in range(len(ODD), count))]
    metadata = [{}, {"title": "T é", "year": 1999, "score": 0.5, "old": True}]
    return [Document(name, f"text of {name}", metadata[n % 2]) for n, name in enumerate(ids)]


def index_of(folder, embeddings=EMBEDDINGS, metric=INNER_PRODUCT, model=MODEL) -> Index:
    count = len(embeddings.codes if isinstance(embeddings, Quantized) else embeddings)
    return make_index(folder, embeddings, documents(count), metric=metric, model=model)


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> str:
    return str(tmp_path_factory.mktemp("milvus") / "new" / "all.db")


@pytest.fixture
def to(address, request) -> tuple[str, str]:
    """Address and a collection for each test."""
    return address, re.sub(r"\W", "_", request.node.name)


@contextlib.contextmanager
def own_client(address: str):
    """Milvus' own client, whose folder is free afterwards."""
    from milvus_lite.server_manager import server_manager_instance
    from pymilvus import MilvusClient

    with contextlib.closing(MilvusClient(address)) as client:
        yield client
    server_manager_instance.release_server(address)


def search(to, questions, k) -> list[list[tuple[Document, float]]]:
    """Documents and scores found by Milvus' own client."""
    address, name = to
    fields = {"anns_field": "embedding", "output_fields": ["document", "text", "metadata"]}
    with own_client(address) as client:
        client.load_collection(name)
        questions = [*np.asarray(questions, np.float32)]
        found = client.search(name, questions, limit=k, consistency_level="Strong", **fields)
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
    assert publish(index, *to) == PublishResult(COUNT, removed=0, cut=0, others=0)
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
    (hits,) = search(to, QUESTIONS[:1], COUNT)
    expected = dict(zip((document.id for document in documents()), values @ QUESTIONS[0], strict=True))
    assert len(hits) == COUNT
    np.testing.assert_allclose([score for _, score in hits], [expected[document.id] for document, _ in hits], atol=1e-4)


def test_again_nothing_changes_and_changes_are_followed(to, tmp_path):
    index = index_of(tmp_path / "index")
    publish(index, *to)
    assert publish(index, *to) == PublishResult(COUNT, removed=0, cut=0, others=0)
    index.delete([*ODD[1:], "d79"])
    index.add([Document("a b", "another text"), Document("d79", "again")], EMBEDDINGS[:2] + 9, replace=True)
    assert publish(Index(tmp_path / "index"), *to) == PublishResult(COUNT - 9, removed=9, cut=0, others=0)
    (hits,) = search(to, np.ones((1, 16)), 2)
    assert {document.id: document.text for document, _ in hits} == {"a b": "another text", "d79": "again"}
    assert publish(index_of(tmp_path / "part", EMBEDDINGS[:50]), *to) == PublishResult(50, 0, 0, others=COUNT - 50)


def test_values_beyond_the_limits_of_milvus_are_cut_or_refused(to, tmp_path):
    def publish_all(*documents):
        return publish(make_index(tmp_path / "index", EMBEDDINGS[: len(documents)], documents), *to)

    long = Document("long", "x" * (milvus.LARGEST - 1) + "éé")
    assert publish_all(long, Document("short", "")) == PublishResult(2, 0, cut=1, others=0)
    texts = {document.id: document.text for document, _ in search(to, QUESTIONS[:1], 2)[0]}
    assert texts == {"long": "x" * (milvus.LARGEST - 1), "short": ""}
    check_refusal(lambda: publish_all(Document("y" * 70_000, "text")), "id", "'yyy", "70,000 bytes", "65,535")
    long = Document("z", "text", {"n": "é" * 35_000})
    check_refusal(lambda: publish_all(long), "metadata", "'z'", "70,009 bytes")


def test_a_replaced_document_leaves_no_passages(to, tmp_path):
    book = passages_of(Document("book", ""), ["one", "two", "three", "four"])
    index = make_index(tmp_path / "i", np.eye(5, 16, dtype="f4"), [*book, Document("whole", "text")])
    assert publish(index, *to) == (5, 0, 0, 0)
    index.add(book[:2], np.ones((2, 16), "f4"), replace=True)
    index.delete(["whole"])
    assert publish(index, *to) == (2, 1, 0, 0)


def test_a_collection_of_something_else_is_refused(to, tmp_path):
    publish(index_of(tmp_path / "index", EMBEDDINGS[:20]), *to)
    for change, words in (
        ({"model": {"name": "n", "identity": "2" * 64}}, [f"model {'1' * 64} m", f"{'2' * 64} n"]),
        ({"metric": COSINE}, ["metric IP", "COSINE"]),
        ({"embeddings": EMBEDDINGS[:20, :8], "model": MODEL | {"name": "new"}}, ["has width 16", "8"]),
    ):
        index = index_of(tmp_path / "index", **{"embeddings": EMBEDDINGS[:20]} | change)
        check_refusal(lambda index=index: publish(index, *to), *words, "choose another collection")
    assert len(search(to, QUESTIONS[:1], 100)[0]) == 20
    with own_client(to[0]) as client:
        client.create_collection("foreign", dimension=16, id_type="string", max_length=9)
    foreign = to[0], "foreign"
    check_refusal(lambda: publish(index_of(tmp_path / "index"), *foreign), "model unknown", "width None", "metric")


def test_a_server_that_is_not_there_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(milvus, "TIMEOUT", 0.5)
    nobody, index = "http://127.0.0.1:9", index_of(tmp_path / "index", EMBEDDINGS[:20])
    check_refusal(lambda: publish(index, nobody, "a"), f"{nobody}: ", "connect")
