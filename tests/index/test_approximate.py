import sys

import numpy as np
import pytest
from helpers import refused

from endx_jax.data.sets.documents import Document
from endx_jax.index.approximate import ENGINES, Faiss, clusters
from endx_jax.index.index import Index, write_index

pytest.importorskip("faiss", reason="the package faiss-cpu is not installed")

COUNT, WIDTH = 600, 16


def unit(count, seed):
    rows = np.random.default_rng(seed).standard_normal((count, WIDTH)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def documents(count, name="d"):
    return [Document(f"{name}{n}", f"text {n}") for n in range(count)]


@pytest.fixture
def index(tmp_path) -> Index:
    write_index(tmp_path / "i", unit(COUNT, 0), documents(COUNT), metric="cosine", model={"identity": "a"})
    return Index(tmp_path / "i")


def recall(engine, index, questions, k=10):
    """The share of the exact best k that an engine finds."""
    found, exact = engine.search(index.snapshot, questions, k), index.snapshot.corpus.search(questions, k)
    return np.mean([len({*a} & {*b}) / k for a, b in zip(found.rows, exact.rows, strict=True)])


@pytest.mark.parametrize(("engine", "least"), [("flat", 1.0), ("ivf", 0.5), ("hnsw", 0.95), ("own", 0.9)])
def test_an_engine_finds_most_of_the_exact_answers(index, engine, least, monkeypatch):
    monkeypatch.setitem(ENGINES, "own", "HNSW8,Flat")  # any string of faiss's `index_factory`
    questions = unit(50, 1)
    searching = Faiss(engine)
    assert recall(searching, index, questions) >= least
    found, exact = searching.search(index.snapshot, questions, 10), index.snapshot.corpus.search(questions, 10)
    same = found.rows == exact.rows
    np.testing.assert_allclose(found.scores[same], exact.scores[same], atol=1e-5)


@pytest.mark.parametrize("engine", ["ivf", "hnsw"])
def test_a_narrow_filter_misses_no_document(tmp_path, engine):
    count, questions = 4000, unit(20, 1)
    write_index(tmp_path / "i", unit(count, 0), documents(count), metric="cosine", model={})
    snapshot, where = Index(tmp_path / "i").snapshot, np.zeros(count, bool)
    where[::1500] = True
    found, exact = Faiss(engine).search(snapshot, questions, 10, where), snapshot.corpus.search(questions, 10, where)
    np.testing.assert_array_equal(found.rows, exact.rows)


def test_clusters_are_found_anew_when_they_were_outgrown(tmp_path):
    write_index(tmp_path / "i", unit(40, 0), documents(40), metric="cosine", model={})
    index = Index(tmp_path / "i")
    searching = Faiss("ivf")
    searching.search(index.snapshot, unit(1, 1), 5)
    assert searching._index.nlist == clusters(40) == 1
    index.add(documents(60, "new"), unit(60, 2))
    searching.search(index.snapshot, unit(1, 1), 5)
    assert searching._index.nlist == 1  # 100 // 39 = 2 clusters would not be more than twice as many
    index.add(documents(100, "newer"), unit(100, 3))
    searching.search(index.snapshot, unit(1, 1), 5)
    assert searching._index.nlist == clusters(200) == 5


@pytest.mark.parametrize("engine", ENGINES)
def test_rows_of_a_later_snapshot_are_not_found_in_an_earlier_one(index, engine):
    before, searching, question = index.snapshot, Faiss(engine), unit(1, 5)
    index.add([Document("new", "")], 9 * question)
    assert searching.search(index.snapshot, question, 1).rows.tolist() == [[COUNT]]
    found, exact = searching.search(before, question, 5), before.corpus.search(question, 5)
    assert found.rows.max() < COUNT
    assert engine == "ivf" or found.rows.tolist() == exact.rows.tolist()


@pytest.mark.parametrize(("count", "expected"), [(1, 1), (77, 1), (78, 2), (10_000, 256), (1_000_000, 4000)])
def test_clusters_grow_with_the_square_root(count, expected):
    assert clusters(count) == expected


def test_a_search_without_documents_finds_nothing_and_a_missing_faiss_is_named(index, monkeypatch):
    searching = Faiss("hnsw")
    assert searching.search(index.snapshot, np.zeros((0, WIDTH), np.float32), 5).rows.shape == (0, 5)
    index.delete([f"d{n}" for n in range(COUNT)])
    assert searching.search(index.snapshot, unit(2, 1), 5).rows.shape == (2, 0)
    monkeypatch.setitem(sys.modules, "faiss", None)
    refused(r"'hnsw' needs faiss: pip install -e", Index, index.path, engine="hnsw")
