"""Tests of evaluation on a whole index."""

import numpy as np
import pytest

from endx_jax import metrics
from endx_jax.data.documents import Document
from endx_jax.data.relevance import Answered
from endx_jax.errors import EndxError
from endx_jax.retrieval import index_evaluation
from endx_jax.retrieval.index import Index, write_index
from endx_jax.retrieval.index_evaluation import (
    evaluate_answered,
    evaluate_judged,
    passage,
    places,
    rows_of,
    streamed_counts,
)
from endx_jax.retrieval.search import Tile

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


QUESTIONS, CANDIDATES, WIDTH = 20, 230, 6


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Two chunks of questions, four blocks of two tiles."""
    monkeypatch.setitem(index_evaluation.TILES, "cpu", Tile(questions=16, candidates=32, merged=8))
    monkeypatch.setattr(index_evaluation, "BLOCK", 64)


@pytest.fixture(scope="module")
def embeddings():
    """Small whole numbers, so that scores are exact and many are equal."""
    draw = np.random.default_rng(0)
    questions = draw.integers(-2, 3, (QUESTIONS, WIDTH)).astype(np.float32)
    candidates = draw.integers(-2, 3, (CANDIDATES, WIDTH)).astype(np.float32)
    positives = np.full((QUESTIONS, 3), -1, np.int32)
    for row in positives:
        count = draw.integers(1, 4)
        row[:count] = draw.choice(CANDIDATES, count, replace=False)
    positives[0, :2] = [0, CANDIDATES - 1]
    return questions, candidates, positives


def streamed_ranks(questions, positives, candidates, **options):
    return places(*streamed_counts(questions, positives, candidates, **options), positives)


def naive(scores, positives) -> list[list[float]]:
    found = []
    for row, right in zip(scores, positives, strict=True):
        right = right[right >= 0]
        wrong = np.delete(row, right)
        own = np.sort(row[right])[::-1]
        places = [n + (wrong > s).sum() + (wrong == s).sum() / 2 for n, s in enumerate(own, start=1)]
        found.append(places + [np.inf] * (positives.shape[1] - len(places)))
    return found


def test_ranks_equal_a_naive_count_and_those_of_all_scores_at_once(embeddings):
    questions, candidates, positives = embeddings
    found = streamed_ranks(questions, positives, candidates)
    scores = questions @ candidates.T
    np.testing.assert_array_equal(found, naive(scores, positives))
    np.testing.assert_array_equal(found, metrics.ranks(scores, positives))
    assert (found[np.isfinite(found)] % 1 == 0.5).any()  # there are ties


def test_masked_documents_do_not_affect_ranks(embeddings):
    questions, candidates, positives = embeddings
    where = np.random.default_rng(1).random(CANDIDATES) < 0.7
    where[positives[positives >= 0]] = True
    scores = np.where(where, questions @ candidates.T, -np.inf)
    found = streamed_ranks(questions, positives, candidates, where=where)
    np.testing.assert_array_equal(found, naive(scores, positives))
    assert (found < streamed_ranks(questions, positives, candidates)).any()


def test_codes_with_scales(embeddings):
    questions, candidates, positives = embeddings
    scales = np.random.default_rng(2).choice(np.float32([0.5, 1, 2]), CANDIDATES)
    found = streamed_ranks(questions, positives, candidates.astype(np.int8), scales=scales)
    np.testing.assert_array_equal(found, naive(questions @ (candidates * scales[:, None]).T, positives))


def test_equal_embeddings_tie_whatever_their_numbers_are(embeddings):
    draw = np.random.default_rng(3)
    questions, candidates = (draw.normal(size=(n, WIDTH)).astype(np.float32) for n in (QUESTIONS, CANDIDATES))
    candidates[200] = candidates[5]  # in another block, and in another place of it
    found = streamed_ranks(questions, np.full((QUESTIONS, 1), 5, np.int32), candidates)
    higher = (questions @ candidates.T > (questions @ candidates[5])[:, None] + 1e-5).sum(1)
    np.testing.assert_array_equal(found[:, 0], higher + 1.5)


def test_nan_never_improves_a_rank(embeddings):
    questions, candidates, positives = embeddings
    candidates = candidates.copy()
    candidates[[n for n in range(CANDIDATES) if n not in positives][:3]] = np.nan
    found = streamed_ranks(questions, positives, candidates)
    np.testing.assert_array_equal(found, metrics.ranks(questions @ candidates.T, positives))
