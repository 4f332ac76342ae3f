import json
import shutil

import jax
import numpy as np
import pytest
from helpers import written
from late_folders import write_multi_vector
from small_index import make_index

import endx_jax
from endx_jax.data.batches.ragged import RaggedVectors
from endx_jax.data.sets.documents import Document
from endx_jax.index.corpus_encoding import encode_corpus
from endx_jax.index.index import write_index
from endx_jax.index.index_model import open_index
from endx_jax.index.shards import join_shards
from endx_jax.index.store import Store
from endx_jax.ranking.bm25 import BM25
from endx_jax.serving.service import SearchJob, Service

WORDS = "cat dog mouse sat the on mat who is where in town here".split()
DRAW = np.random.default_rng(0)
TEXTS = [" ".join(DRAW.choice(WORDS, DRAW.integers(3, 12))) for _ in range(40)]
ASKED = ["where is the cat", "who sat on the mat", "town"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return endx_jax.load(str(write_multi_vector(tmp_path_factory.mktemp("late"))))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    rows = [{"_id": f"d{n}", "text": text, "even": n % 2 == 0} for n, text in enumerate(TEXTS)]
    return written(tmp_path_factory.mktemp("corpus") / "corpus.jsonl", rows)


@pytest.fixture(scope="module")
def encoded(model, corpus, tmp_path_factory):
    return encode_corpus(model.name, str(corpus), tmp_path_factory.mktemp("index") / "index.sqlite")


@pytest.fixture
def path(encoded, tmp_path):
    return shutil.copy(encoded, tmp_path / "index.sqlite")


def exact(model, texts=TEXTS):
    """MaxSim of unrounded token vectors, divided by the questions' tokens."""
    asked = model.encode_query(ASKED)
    return model.similarity(asked, model.encode_document(texts)) / np.array([[len(one)] for one in asked])


def found(answers):
    return [[(int(one.document.id[1:]), one.score) for one in ranked] for ranked in answers]


def test_a_search_ranks_by_maxsim_as_on_demand_but_for_rounding(path, model):
    scores = exact(model)
    for asked, ranked in zip(scores, found(open_index(path).search(ASKED, 10, mode="dense")), strict=True):
        np.testing.assert_allclose([score for _, score in ranked], [asked[row] for row, _ in ranked], atol=8e-3)
        tenth, rows = np.sort(asked)[-10], {row for row, _ in ranked}
        assert {*np.flatnonzero(asked > tenth + 0.016)} <= rows <= {*np.flatnonzero(asked > tenth - 0.016)}


def test_hybrid_adds_bm25_to_the_mean_over_the_tokens_of_the_question(path, model):
    search = open_index(path)
    fused = exact(model) + search.hybrid.weight * BM25.of_texts(TEXTS).scaled_block(ASKED)(0, len(ASKED))
    for asked, ranked in zip(fused, found(search.search(ASKED, 5, mode="hybrid")), strict=True):
        np.testing.assert_allclose([score for _, score in ranked], -np.sort(-asked)[:5], atol=8e-3)


def test_filters_additions_and_deletions_reach_the_token_vectors(path, model):
    search = open_index(path)
    (ranked,) = found(search.search(ASKED[:1], 40, mode="dense", where={"even": True}))
    assert len(ranked) == 20
    assert all(row % 2 == 0 for row, _ in ranked)
    assert search.add([Document("d1", ASKED[0]), Document("d40", "the mat")], replace=True) == 1
    search.delete(["d0"])
    changed = [*TEXTS, "the mat"]
    changed[1] = ASKED[0]
    scores = exact(model, changed)[0]
    (ranked,) = found(search.search(ASKED[:1], 50, mode="dense"))
    assert {row for row, _ in ranked} == {*range(1, 41)}
    np.testing.assert_allclose([score for _, score in ranked], [scores[row] for row, _ in ranked], atol=8e-3)
    (read,) = Store(path).rows("SELECT count(*), sum(length(codes)), sum(length(scales)) FROM tokens")
    tokens = sum(map(len, model.encode_document(changed[1:])))
    assert read == (40, 4 * tokens, 4 * tokens)


def test_an_index_takes_what_the_model_s_encoders_return(model, path, tmp_path):
    documents = [Document(f"d{n}", text) for n, text in enumerate(TEXTS)]
    about = {"metric": "cosine", "model": model.description}
    write_index(tmp_path / "new", model.encode_document(TEXTS[:30]), documents[:30], **about)
    index = open_index(tmp_path / "new", model)
    index.add(documents[30:39], model.encode_document(TEXTS[30:39]))
    index.add(documents[39])
    expected = open_index(path).search(ASKED, 40, mode="dense")
    for found_now in (
        index.search(ASKED, 40, mode="dense", embeddings=model.encode_query(ASKED)),
        index.search(ASKED, 40, mode="dense"),
    ):
        for one, other in zip(found(found_now), found(expected), strict=True):
            assert dict(one) == pytest.approx(dict(other), abs=1e-6)


def test_shards_are_joined_and_unchanged_texts_reused_bit_for_bit(model, corpus, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("jax.local_devices", jax.devices)  # for all eight, all batches have one width
    path = encode_corpus(model.name, str(corpus), tmp_path / "whole")
    parts = [encode_corpus(model.name, str(corpus), tmp_path / f"{n}", shard=(n, 2)) for n in (1, 2)]
    assert join_shards(tmp_path / "joined", parts) == 40
    rows = [*map(json.loads, corpus.read_text().splitlines())]
    rows[3]["text"] = "the other dog"
    new = written(tmp_path / "new.jsonl", rows)
    reused = encode_corpus(model.name, str(new), tmp_path / "new", reuse=path)
    assert f"encoded 1 document, took over 39 of {path} in " in capsys.readouterr().out
    query = "SELECT id, embedding, codes, scales FROM documents JOIN passages ON document = documents.row"
    query += " JOIN tokens ON passage = passages.row"
    first, joined, new = (
        {row[0]: row[1:] for row in Store(p).rows(query)} for p in (path, tmp_path / "joined", reused)
    )
    assert len(first) == 40
    assert first == joined
    assert {name for name in first if first[name] != new[name]} == {"d3"}


def test_a_server_searches_and_adds_by_token_vectors(path, model):
    search = open_index(path)
    service = Service(model, search)
    ((answers, _),) = service.run([SearchJob(ASKED[0], 10, "dense")])
    scores = exact(model)[0]
    np.testing.assert_allclose([one["score"] for one in answers], -np.sort(-scores)[:10], atol=8e-3)
    service.add([Document("same", ASKED[0])], RaggedVectors.of(model.encode_document([ASKED[0]])))
    ((answers, _),) = service.run([SearchJob(ASKED[0], 1, "dense")])
    assert answers[0]["id"] == "same"
    job, _, cut = service.read_pairs(ASKED[0], [*TEXTS[:3], "the cat " * 5000])
    asked = len(model.encode_query(ASKED[0]))
    np.testing.assert_allclose(job(range(3))() / asked, scores[:3], rtol=1e-4)
    assert cut() == 1


def test_an_index_of_another_kind_of_model_has_no_token_vectors(path):
    index = make_index(path, np.ones((1, 4), np.float32), [Document("new", "a text")])
    assert [*Store(path).rows("SELECT * FROM tokens")] == []
    index.delete(["new"])
