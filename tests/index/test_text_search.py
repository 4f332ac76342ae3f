import numpy as np
import pytest
from helpers import searching
from small_index import make_index

from endx_jax.data.sets.documents import Document, FoundDocument
from endx_jax.index.approximate import ENGINES
from endx_jax.index.index import Index
from endx_jax.index.index_file import changing, store_info
from endx_jax.ranking.hybrid import Hybrid

TEXTS = ["cats sleep", "dogs bark", "cats bark", "fish"]
ANIMALS = ("cat", "dog", "fish")


def encode(texts):
    """Which animals a text names: embeddings that see nothing else."""
    return np.float32([[animal in text.lower() for animal in ANIMALS] for text in texts]).reshape(-1, 3)


@pytest.fixture
def index(tmp_path) -> Index:
    documents = [Document(f"d{n}", text, {"line": n}) for n, text in enumerate(TEXTS)]
    return make_index(tmp_path / "index", encode(TEXTS), documents, metric="inner product")


def ids(answers):
    return [answer.document.id for answer in answers]


def test_answers_carry_rank_score_and_document(index):
    cat, fish = searching(index, encode).search(["my cat", "a fish"], 2, mode="dense")
    expected = [Document("d0", "cats sleep", {"line": 0}), Document("d2", "cats bark", {"line": 2})]
    assert cat == [FoundDocument(rank, 1.0, document) for rank, document in enumerate(expected, start=1)]
    assert ([(answer.rank, answer.score) for answer in fish], ids(fish)[0]) == ([(1, 1.0), (2, 0.0)], "d3")
    (found,) = searching(index).search(["do cats bark"], 10, mode="bm25")
    assert (ids(found), [answer.rank for answer in found]) == (["d2", "d0", "d1"], [1, 2, 3])


def test_hybrid_is_the_fusion_of_both(index):
    def scores(hybrid=None, **options):
        (answers,) = searching(index, encode, hybrid=hybrid).search(["a cat, barking"], 4, **options)
        return {answer.document.id: answer.score for answer in answers}

    dense, lexical = scores(mode="dense"), scores(mode="bm25")
    # `cat` stands in d0 and d2, `bark` in d1 and d2; of equal scores the lower row comes first.
    assert [*dense.items()] == [("d0", 1), ("d2", 1), ("d1", 0), ("d3", 0)]
    assert [*lexical] == ["d2", "d0", "d1"]
    assert lexical["d0"] == lexical["d1"] < lexical["d2"]
    by_place = {"d0": 1 / 61 + 1 / 62, "d2": 1 / 62 + 1 / 61, "d1": 1 / 63 + 1 / 63, "d3": 1 / 64}
    assert [*scores(mode="hybrid").items()] == [(name, pytest.approx(score)) for name, score in by_place.items()]
    by_score = {"d2": 1 + 2 * lexical["d2"], "d0": 1 + 2 * lexical["d0"], "d1": 2 * lexical["d1"], "d3": 0}
    found = scores(Hybrid(2.0), mode="hybrid")
    assert [*found.items()] == [(name, pytest.approx(score)) for name, score in by_score.items()]


def test_hybrid_is_the_default_unless_it_does_not_help(index):
    def ranked(hybrid=None, **options):
        return searching(index, encode, hybrid=hybrid).search(["a cat, barking"], 4, **options)

    assert ranked() == ranked(mode="hybrid") == ranked(Hybrid(None)) != ranked(mode="dense")
    assert ranked(Hybrid(2.0)) == ranked(Hybrid(2.0), mode="hybrid")
    assert ranked(Hybrid(0.0, 150)) == ranked(mode="dense")

    def line(hybrid=None, mode=None):
        search = searching(index, hybrid=hybrid)
        return search.describe(mode or search.default_mode).replace(str(index.path), "FILE")

    assert line() == "searching 4 documents (FILE), mode hybrid: the sum of reciprocal ranks in dense and BM25"
    assert line(Hybrid()).endswith("mode hybrid: dense + 0.08 x BM25 (weight: the default)")
    assert line(Hybrid(0.3)).endswith("mode hybrid: dense + 0.30 x BM25 (weight: given)")
    assert line(Hybrid(0.0, 150)).endswith("mode dense (in validation, BM25 did not improve it)")
    assert line(mode="dense").endswith("mode dense")
    assert line(mode="bm25").endswith("mode bm25")


def test_an_index_names_its_source(index, tmp_path):
    assert str(index) == f"4 documents ({index.path})"
    corpus = {"part": "all answers of ", "path": "faq.csv"}
    found = make_index(tmp_path / "of", np.eye(2, dtype=np.float32), [Document(n, n) for n in "ab"], corpus=corpus)
    assert str(found) == "2 documents (all answers of 'faq.csv')"
    found.delete(["a"])
    assert str(found) == "1 document (all answers of 'faq.csv', changed since)"


def test_words_follow_the_language_of_the_index(index):
    for language, found in (("english", ["d0"]), ("german", []), ("english", ["d0"])):
        with changing(index.path) as database:
            store_info(database, language=language)
        assert ids(index.search("sleeping", mode="bm25")) == found


@pytest.mark.parametrize("engine", ["exact", *ENGINES])
@pytest.mark.parametrize("mode", ["dense", "bm25", "hybrid"])
def test_all_see_what_is_added_and_not_what_is_deleted(index, engine, mode):
    if engine != "exact":
        pytest.importorskip("faiss", reason="the package faiss-cpu is not installed")
    search = searching(index, encode, encode, engine=engine)
    search.search(["fish"], 2, mode=mode)
    search.add([Document("new", "fish and fish"), Document("d3", "not a dog any more")], replace=True)
    search.delete(["d1"])
    assert (len(search), "d1" in index, "new" in index) == (4, False, True)
    assert ids(search.search(["fish"], 1, mode=mode)[0]) == ["new"]
    everything = ids(search.search(["fish dogs cats bark sleep"], 10, mode=mode)[0])
    assert sorted(everything) == ["d0", "d2", "d3", "new"]
