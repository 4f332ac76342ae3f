import contextlib
import dataclasses
import sqlite3

import jax
import numpy as np
import pytest
from helpers import searching
from small_index import embed, embed_known, make_index

from endx_jax.data.sets.documents import Document
from endx_jax.data.sets.records import RetrievalSet
from endx_jax.index.approximate import ENGINES
from endx_jax.index.index import Index
from endx_jax.numerics import quantize
from endx_jax.ranking.hybrid import Hybrid, fit_known

COUNT = 40
FULL = Hybrid(known=1.0)


def faq(count=COUNT) -> list[Document]:
    """Documents with 0, 1 or 2 known questions."""
    asked = [tuple(f"q{n}-{m} known" for m in range(n % 3)) for n in range(count)]
    return [Document(f"d{n}", f"text{n}", {"n": n}, asked[n]) for n in range(count)]


def write(path, documents, **options) -> Index:
    return make_index(path, embed([document.text for document in documents]), documents, **options)


@pytest.fixture
def index(tmp_path) -> Index:
    return write(tmp_path / "index", faq(), known=embed_known(faq()))


def expected(documents, question: str, weight: float, k: int) -> list[tuple[str, float]]:
    """Returns the best documents by the plain definition."""
    (asked,) = embed([question])
    scores = {}
    for document in documents:
        known = [weight * float(one @ asked) for one in embed(document.questions)] if weight else []
        scores[document.id] = max([float(embed([document.text])[0] @ asked), *known])
    return sorted(scores.items(), key=lambda pair: -pair[1])[:k]


@pytest.mark.parametrize(("weight", "k"), [(1.0, 5), (0.8, 100), (0.0, 5)])
def test_a_document_has_the_score_of_its_best_text(index, weight, k):
    search = searching(index, embed, embed, hybrid=Hybrid(known=weight))
    questions = ["q7-0 known", "text3", "something else", "q8-1 known"]
    for question, answers in zip(questions, search.search(questions, k, mode="dense"), strict=True):
        right = expected(faq(), question, weight, k)
        assert [answer.document.id for answer in answers] == [name for name, _ in right]
        assert [answer.score for answer in answers] == pytest.approx([score for _, score in right], abs=1e-6)
    if weight == 1:
        (found,) = search.search(["q8-1 known"], 1, mode="dense")
        assert found[0].document == faq()[8]  # with both of its questions


@pytest.mark.parametrize("first", [0, 10])
def test_documents_with_many_known_questions_hide_no_others(tmp_path, first):
    asked = {n: tuple(f"{m} known" for m in range(40 // n + 1)) for n in range(1, 21)}
    documents = [Document(f"d{n}", f"text{n}", {"n": n}, known) for n, known in asked.items()]
    documents = [dataclasses.replace(one, questions=tuple(f"{one.id} {q}" for q in one.questions)) for one in documents]
    search = searching(write(tmp_path / "many", documents, known=embed_known(documents)), embed, hybrid=FULL)
    (found,) = search.search(["d1 0 known"], 15, mode="dense", where={"n": {"gt": first}} if first else None)
    right = expected(documents[first:], "d1 0 known", 1, 15)
    assert [(one.document.id, one.score) for one in found] == [(name, pytest.approx(score)) for name, score in right]


def test_filters_and_bm25_take_known_questions_into_account(index):
    (found,) = searching(index, embed, hybrid=FULL).search(["q7-0 known"], 3, mode="dense", where={"n": {"gte": 8}})
    assert [one.document.id for one in found] == [name for name, _ in expected(faq()[8:], "q7-0 known", 1, 3)]
    for mode, question in (("bm25", "is q8 there"), ("hybrid", "q8-1 known")):
        (found,) = searching(index, embed, hybrid=FULL).search([question], 2, mode=mode)
        assert found[0].document.id == "d8"


@pytest.mark.parametrize("engine", ["exact", *ENGINES])
def test_changes_reach_known_questions_in_every_open_index(index, engine):
    if engine != "exact":
        pytest.importorskip("faiss", reason="the package faiss-cpu is not installed")
    other = searching(Index(index.path), embed, engine=engine, hybrid=FULL)
    other.search(["warm up"], 3)

    def first(question, mode):
        (found,) = other.search([question], 1, mode=mode)
        return found[0].document.id

    search = searching(index, embed, embed)
    search.add([Document("new", "added", {}, ("a fresh question",)), Document("d7", "text7")], replace=True)
    assert first("a fresh question", "dense") == first("a fresh question", "bm25") == "new"
    assert first("q7-0 known", "dense") == expected([*faq()[:7], *faq()[8:]], "q7-0 known", 1, 1)[0][0]
    index.delete(["new", *(f"d{n}" for n in range(25))])  # more than half: rows are numbered again
    left = faq()[25:]
    for question in ("q26-1 known", "q25-0 known", "a fresh question"):
        assert first(question, "dense") == expected([*left, Document("d7", "text7")], question, 1, 1)[0][0]
    assert index.get("d26") == faq()[26]
    assert (len(index), len(index.snapshot.known)) == (15, sum(n % 3 for n in range(25, 40)))
    with contextlib.closing(sqlite3.connect(index.path)) as database:
        assert database.execute("SELECT count(*) FROM questions").fetchone() == (len(index.snapshot.known),)


def test_an_index_without_known_questions_takes_the_first_one(tmp_path):
    search = searching(write(tmp_path / "old", [Document("a", "one"), Document("b", "two")]), embed, embed)
    assert search.search(["one"], 1, mode="dense")[0][0].document == Document("a", "one")
    search.add([Document("b", "two", {}, ("what is it",))], replace=True)
    assert search.search(["what is it"], 1, mode="dense")[0][0].document.questions == ("what is it",)


@pytest.mark.parametrize("precision", ["float16", "int8"])
def test_known_questions_have_the_precision_of_the_index(tmp_path, precision):
    vectors = jax.tree.map(np.asarray, quantize(embed(["a", "b"]))) if precision == "int8" else embed(["a", "b"])
    vectors = vectors if precision == "int8" else vectors.astype(precision)
    documents = [Document("a", "a", {}, ("ask a",)), Document("b", "b")]
    search = searching(make_index(tmp_path / "i", vectors, documents, known=embed(["ask a"])), embed, hybrid=FULL)
    assert str(search.snapshot.known.embeddings[:].dtype) == precision
    assert search.search(["ask a"], 1, mode="dense")[0][0].score == pytest.approx(1, abs=0.02)


def test_the_weight_of_known_questions_is_chosen_on_validation():
    records = RetrievalSet.from_pairs([(f"q{n}", f"a{n}") for n in range(20)])
    none = np.zeros((20, 20), np.float32)

    def fitted(dense, known):
        blocks = [lambda a, b, scores=scores: scores[a:b] for scores in (dense, known, none)]
        return fit_known(Hybrid(), *blocks, records, "mrr").known

    right, wrong = np.eye(20, dtype=np.float32), np.roll(np.eye(20, dtype=np.float32), 1, axis=1)
    assert fitted(none, right) == 0.5  # the smallest one that has all of the gain
    assert fitted(0.6 * right, wrong) == 0.0
