import numpy as np
import pytest

from endx_jax.data.documents import Document
from endx_jax.retrieval import lexical
from endx_jax.retrieval.bm25 import BM25
from endx_jax.retrieval.index import Index, write_index
from endx_jax.retrieval.lexical import Lexical

TEXTS = ["the cat chased the mouse", "cats and dogs", "a mouse, a mouse", "dogs chase", "", "the end"]
QUESTIONS = ["the cats", "mouse mouse dog", "zebra", ""]


@pytest.fixture
def index(tmp_path) -> Index:
    documents = [Document(str(n), text) for n, text in enumerate(TEXTS)]
    write_index(tmp_path, np.ones((len(TEXTS), 2), np.float32), documents, metric="cosine", model={})
    return Index(tmp_path)


def expected(texts, rows, k):
    """What is above 0 of the scores of all texts that are there, sorted."""
    scores = BM25.of_texts(texts).scores(QUESTIONS)
    ranked = [sorted(zip(rows, line.tolist(), strict=True), key=lambda pair: -pair[1]) for line in scores]
    return [[(row, pytest.approx(score)) for row, score in line if score > 0][:k] for line in ranked]


@pytest.mark.parametrize("k", [1, 2, 10])
def test_ranks_as_bm25_over_the_documents(index, k):
    found = Lexical().search(index.snapshot, QUESTIONS, k)
    assert found == expected(TEXTS, range(6), k)
    assert (len(found[0]), found[2], found[3]) == (min(k, 3), [], [])


def test_follows_the_index_and_splits_each_text_once(index, monkeypatch):
    searching, split = Lexical(), []
    tokenizer = searching._tokenizer
    monkeypatch.setattr(searching, "_tokenizer", lambda texts: split.extend(texts) or tokenizer(texts))
    searching.search(index.snapshot, QUESTIONS, 10)
    index.add([Document("new", "the mouse ends")], np.ones((1, 2)))
    index.delete(["1"])
    kept = [0, 2, 3, 4, 5, 6]
    texts = [*TEXTS, "the mouse ends"]
    assert searching.search(index.snapshot, QUESTIONS, 10) == expected([texts[row] for row in kept], kept, 10)
    assert split == [*TEXTS, *QUESTIONS, "the mouse ends", *QUESTIONS]


def test_is_built_once_for_a_state_of_the_index(index, monkeypatch):
    searching = Lexical()
    searching.search(index.snapshot, QUESTIONS, 1)
    monkeypatch.setattr(lexical, "BM25", None)
    searching.search(index.snapshot, QUESTIONS, 1)


def test_of_equal_scores_the_lower_row_comes_first(tmp_path):
    documents = [Document(str(n), "same words" if n % 2 else "others") for n in range(40)]
    write_index(tmp_path, np.ones((40, 2), np.float32), documents, metric="cosine", model={})
    (found,) = Lexical().search(Index(tmp_path).snapshot, ["words"], 5)
    assert [row for row, _ in found] == [1, 3, 5, 7, 9]


def test_an_index_without_words_finds_nothing(index):
    index.delete(["0", "1", "2", "3", "5"])
    assert Lexical().search(index.snapshot, QUESTIONS, 5) == [[], [], [], []]
