import sys

import numpy as np
import pytest
from helpers import one_line_error

from endx_jax.data.documents import Document
from endx_jax.retrieval import approximate
from endx_jax.retrieval.approximate import ENGINES, Approximate, clusters
from endx_jax.retrieval.index import Index, write_index

pytest.importorskip("faiss", reason="the package faiss-cpu is not installed")

COUNT, WIDTH = 2000, 16


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
    found, exact = engine.search(index.snapshot, questions, k), index.search(questions, k)
    return np.mean([len({*a} & {*b}) / k for a, b in zip(found.rows, exact.rows, strict=True)])


@pytest.mark.parametrize(("engine", "least"), [("flat", 1.0), ("ivf", 0.5), ("hnsw", 0.95)])
def test_an_engine_finds_most_of_the_exact_answers(index, engine, least):
    questions = unit(50, 1)
    searching = Approximate(index.folder, engine)
    assert recall(searching, index, questions) >= least
    found, exact = searching.search(index.snapshot, questions, 10), index.search(questions, 10)
    same = found.rows == exact.rows
    np.testing.assert_allclose(found.scores[same], exact.scores[same], atol=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_file_is_read_and_not_made_again(index, engine, monkeypatch):
    questions = unit(9, 1)
    first = Approximate(index.folder, engine).search(index.snapshot, questions, 5)
    (file,) = index.folder.glob("faiss-*")
    assert file.name.startswith(f"faiss-{engine}-{COUNT}-")
    monkeypatch.setattr(approximate, "_empty", lambda *_: pytest.fail("made again"))
    again = Approximate(index.folder, engine).search(index.snapshot, questions, 5)
    np.testing.assert_array_equal(again.rows, first.rows)


@pytest.mark.parametrize("engine", ENGINES)
def test_added_documents_are_found_and_deleted_ones_are_not(index, engine):
    questions, searching = unit(9, 1), Approximate(index.folder, engine)
    searching.search(index.snapshot, questions, 5)
    index.add(documents(9, "new"), 2 * questions)
    assert searching.search(index.snapshot, questions, 5).rows[:, 0].tolist() == [*range(COUNT, COUNT + 9)]
    index.delete(["new3"])
    for engine_now in (searching, Approximate(index.folder, engine)):
        found = engine_now.search(index.snapshot, questions, 5).rows
        assert COUNT + 3 not in found
        assert found[[0, 1, 2, 4], 0].tolist() == [COUNT, COUNT + 1, COUNT + 2, COUNT + 4]


def test_a_file_is_written_anew_when_much_was_added(index):
    searching, questions = Approximate(index.folder, "flat"), unit(2, 1)
    searching.search(index.snapshot, questions, 5)
    for n, count in enumerate((COUNT // 20, COUNT // 10)):
        index.add(documents(count, f"more {n} "), unit(count, n))
        searching.search(index.snapshot, questions, 5)
        (file,) = index.folder.glob("faiss-*")
        assert file.name.split("-")[2] == str([COUNT, COUNT * 115 // 100][n])


def test_a_file_of_other_embeddings_is_not_used(index, tmp_path):
    questions = unit(9, 1)
    Approximate(index.folder, "flat").search(index.snapshot, questions, 5)
    (stale,) = index.folder.glob("faiss-*")
    write_index(tmp_path / "other", unit(COUNT, 7), documents(COUNT), metric="cosine", model={"identity": "a"})
    stale.rename(tmp_path / "other" / stale.name)
    other = Index(tmp_path / "other")
    assert recall(Approximate(other.folder, "flat"), other, questions) == 1
    (file,) = other.folder.glob("faiss-*")
    assert file.name != stale.name


def test_clusters_are_found_anew_when_they_were_outgrown(tmp_path):
    write_index(tmp_path / "i", unit(40, 0), documents(40), metric="cosine", model={})
    index = Index(tmp_path / "i")
    searching = Approximate(index.folder, "ivf")
    searching.search(index.snapshot, unit(1, 1), 5)
    assert searching._index.nlist == clusters(40) == 1
    index.add(documents(60, "new"), unit(60, 2))
    searching.search(index.snapshot, unit(1, 1), 5)
    assert searching._index.nlist == 1  # 100 // 39 = 2 clusters would not be more than twice as many
    index.add(documents(100, "newer"), unit(100, 3))
    searching.search(index.snapshot, unit(1, 1), 5)
    assert searching._index.nlist == clusters(200) == 5


@pytest.mark.parametrize(("count", "expected"), [(1, 1), (77, 1), (78, 2), (10_000, 256), (1_000_000, 4000)])
def test_clusters_grow_with_the_square_root(count, expected):
    assert clusters(count) == expected


def test_a_search_without_documents_or_questions_finds_nothing(index):
    searching = Approximate(index.folder, "hnsw")
    assert searching.search(index.snapshot, np.zeros((0, WIDTH), np.float32), 5).rows.shape == (0, 5)
    index.delete([f"d{n}" for n in range(COUNT)])
    assert searching.search(index.snapshot, unit(2, 1), 5).rows.shape == (2, 0)


def test_a_missing_faiss_is_named(index, monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with one_line_error(r"'hnsw' needs faiss: pip install 'endx_jax\[search\]'"):
        Approximate(index.folder, "hnsw").search(index.snapshot, unit(1, 1), 5)


def test_a_folder_that_cannot_be_written_is_named(index, monkeypatch):
    import faiss

    def full(*_):
        raise RuntimeError("disk full")

    monkeypatch.setattr(faiss, "write_index", full)
    with one_line_error("can't write .*faiss-flat"):
        Approximate(index.folder, "flat").search(index.snapshot, unit(1, 1), 5)
    assert [*index.folder.glob("faiss-*")] == []
