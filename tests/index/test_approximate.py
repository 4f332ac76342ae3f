import numpy as np
import pytest
from helpers import Instead
from refusals import check_refusal
from small_index import make_index

from endx_jax.data.sets.documents import Document
from endx_jax.index.approximate import ENGINES, Faiss, clusters
from endx_jax.index.index import Index

pytest.importorskip("faiss", reason="the package faiss-cpu is not installed")

COUNT, WIDTH = 600, 16


def unit(count, seed):
    rows = np.random.default_rng(seed).standard_normal((count, WIDTH)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def documents(count, name="d"):
    return [Document(f"{name}{n}", f"text {n}") for n in range(count)]


@pytest.fixture
def index(tmp_path) -> Index:
    return make_index(tmp_path / "i", unit(COUNT, 0), documents(COUNT))


@pytest.mark.parametrize(("engine", "least"), [("flat", 1.0), ("ivf", 0.5), ("hnsw", 0.95)])
def test_an_engine_finds_most_of_the_exact_answers(index, engine, least):
    questions = unit(50, 1)
    found, exact = Faiss(engine).search(index.snapshot, questions, 10), index.snapshot.corpus.search(questions, 10)
    assert np.mean([len({*a} & {*b}) / 10 for a, b in zip(found.rows, exact.rows, strict=True)]) >= least
    same = found.rows == exact.rows
    np.testing.assert_allclose(found.scores[same], exact.scores[same], atol=1e-5)


def test_questions_of_another_width_are_refused(index):
    search = Index(index.path, engine="flat").search
    check_refusal(lambda: search("?", mode="dense", embeddings=unit(1, 1)[:, 1:]), "(1, 15)", "[1, 16]")


@pytest.mark.parametrize("engine", ["ivf", "hnsw"])
def test_a_narrow_filter_misses_no_document(tmp_path, engine):
    count, questions = 4000, unit(20, 1)
    snapshot, where = make_index(tmp_path / "i", unit(count, 0), documents(count)).snapshot, np.zeros(count, bool)
    where[::1500] = True
    found, exact = Faiss(engine).search(snapshot, questions, 10, where), snapshot.corpus.search(questions, 10, where)
    np.testing.assert_array_equal(found.rows, exact.rows)


def test_clusters_are_found_anew_when_they_were_outgrown(tmp_path):
    index = make_index(tmp_path / "i", unit(40, 0), documents(40))
    searching = Faiss("ivf")

    def read():
        """The rows whose embeddings a search reads."""
        snapshot, found = index.snapshot, []
        vectors = lambda *rows: found.append(rows) or snapshot.vectors(*rows)  # noqa: E731
        searching.search(Instead(snapshot, vectors=vectors), unit(1, 1), 5)
        return found

    assert read() == [(0, 40), (0, 40)]  # to find clusters, and to fill them
    assert read() == []
    index.add(documents(60, "new"), unit(60, 2))
    assert read() == [(40, 100)]  # 100 // 39 = 2 clusters would not be more than twice as many
    index.add(documents(100, "newer"), unit(100, 3))
    assert read() == [(0, 200), (0, 200)]


@pytest.mark.parametrize("engine", ENGINES)
def test_rows_of_a_later_snapshot_are_not_found_in_an_earlier_one(index, engine):
    before, searching, question = index.snapshot, Faiss(engine), unit(1, 5)
    index.add([Document("new", "")], 9 * question)
    assert searching.search(index.snapshot, question, 1).rows.tolist() == [[COUNT]]
    found, exact = searching.search(before, question, 5), before.corpus.search(question, 5)
    assert found.rows.max() < COUNT
    assert engine == "ivf" or found.rows.tolist() == exact.rows.tolist()


@pytest.mark.parametrize(
    ("count", "expected"), [(1, 1), (40, 1), (77, 1), (78, 2), (200, 5), (10_000, 256), (1_000_000, 4000)]
)
def test_clusters_grow_with_the_square_root(count, expected):
    assert clusters(count) == expected


def test_a_search_without_documents_finds_nothing(index):
    searching = Faiss("hnsw")
    assert searching.search(index.snapshot, np.zeros((0, WIDTH), np.float32), 5).rows.shape == (0, 5)
    index.delete([f"d{n}" for n in range(COUNT)])
    assert searching.search(index.snapshot, unit(2, 1), 5).rows.shape == (2, 0)
