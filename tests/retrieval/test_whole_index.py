import numpy as np
import pytest

from endx_jax.data.answered import Answered
from endx_jax.data.documents import Document
from endx_jax.errors import EndxError
from endx_jax.retrieval.index import Index, write_index
from endx_jax.retrieval.whole_index import evaluate_answered, evaluate_judged, passage, rows_of

# Along the first axis the documents score 6, 5, 4, 3, 2, 1.
EMBEDDINGS = np.stack([np.arange(6.0, 0, -1), np.zeros(6)], axis=1).astype(np.float32)
TEXTS = ("York It is old.", "York A city in England.", "Rome In Italy.", "Lima In Peru.", "Oslo In Norway.", "Bonn")
QUESTION = np.array([[1, 0]], np.float32)


@pytest.fixture
def index(tmp_path):
    documents = [
        Document(f"d{n}", text, {"title": text.split()[0]} if " " in text else {}) for n, text in enumerate(TEXTS)
    ]
    write_index(tmp_path / "index", EMBEDDINGS, documents, metric="inner product", model={"name": "x"})
    return Index(tmp_path / "index")


def test_ids_are_found_and_missing_ones_named(index):
    assert rows_of(index.snapshot, ["d4", "d0", "d4"]) == {"d0": 0, "d4": 4}
    with pytest.raises(EndxError, match=r"2 of 3 right documents are not in the index, such as 'a': encode the corpus"):
        rows_of(index.snapshot, ["d1", "b", "a"])
    index.delete(["d4"])
    with pytest.raises(EndxError, match="1 of 1 right documents"):
        rows_of(index.snapshot, ["d4"])


def test_right_documents_are_ranked_among_all_that_are_there(index):
    found = evaluate_judged(index.snapshot, np.repeat(QUESTION, 2, 0), [[1, 3], [5]], depth=2)
    assert found.ranks.tolist() == [[2, 4], [6, np.inf]]
    assert found.metrics["mrr"] == pytest.approx((1 / 2 + 1 / 6) / 2)
    assert found.top_ids.tolist() == [[0, 1]] * 2
    assert (found.questions, found.candidates) == (2, 6)
    index.delete(["d0", "d2"])
    found = evaluate_judged(index.snapshot, np.repeat(QUESTION, 2, 0), [[1, 3], [5]], depth=2)
    assert found.ranks.tolist() == [[1, 2], [4, np.inf]]
    assert found.candidates == 4


def test_top_k_accuracy_looks_for_answers_in_texts_and_not_in_titles(index):
    asked = [
        Answered("q0", "where is York", ("england",)),  # second
        Answered("q1", "what is old", ("York", "old")),  # first, by its text
        Answered("q2", "which is it", ("Rome",)),  # a title only
        Answered("q3", "where is Lima", ("peru", "norway")),  # fourth, before the fifth
    ]
    found = evaluate_answered(index.snapshot, np.repeat(QUESTION, 4, 0), asked, cutoffs=(1, 2, 4))
    assert found.first.tolist() == [2, 1, np.inf, 4]
    assert found.metrics == {"accuracy@1": 1 / 4, "accuracy@2": 2 / 4, "accuracy@4": 3 / 4}
    assert found.top_ids.shape == (4, 4)
    assert evaluate_answered(index.snapshot, QUESTION, asked[3:], cutoffs=(3,)).metrics == {"accuracy@3": 0}


def test_a_text_is_what_follows_its_title():
    assert passage(Document("a", "York York is old.", {"title": "York"})) == "York is old."
    assert passage(Document("a", "York is old.", {"title": "Yo"})) == "York is old."
    assert passage(Document("a", "York is old.")) == "York is old."
