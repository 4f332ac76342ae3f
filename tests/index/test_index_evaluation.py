import numpy as np
import pytest
from refusals import check_refusal
from small_index import make_index

from endx_jax import metrics
from endx_jax.data.sets.documents import Document
from endx_jax.data.sets.examples import Example, Judgements
from endx_jax.data.sets.records import RetrievalSet
from endx_jax.index.index_evaluation import (
    JudgementRows,
    evaluate_answered,
    evaluate_judged,
    find_rows,
    judgements_by_text,
    rank_by_index,
)
from endx_jax.numerics import Quantized

# Along the first axis the documents score 6, 5, 4, 3, 2, 1.
EMBEDDINGS = np.stack([np.arange(6.0, 0, -1), np.zeros(6)], axis=1).astype(np.float32)
TEXTS = ("York It is old.", "York A city in England.", "Rome In Italy.", "Lima In Peru.", "Oslo In Norway.", "Bonn")
QUESTION = np.array([[1, 0]], np.float32)


@pytest.fixture
def index(tmp_path):
    titled = [(text, {"title": text.split()[0]} if " " in text else {}) for text in TEXTS]
    documents = [Document(f"d{n}", *one) for n, one in enumerate(titled)]
    return make_index(tmp_path / "index", EMBEDDINGS, documents, metric="inner product")


def judged(*ids, excluded=()):
    return Judgements(("q",), ("?",), (dict.fromkeys(ids, 1),), (excluded,))


def test_ids_are_found_and_missing_ones_named(index):
    assert find_rows(index.snapshot, judged("d4", "d0", excluded=("d2", "x"))) == ([[0, 4]], [[1, 1]], [[2]])
    index.delete(["d4"])
    check_refusal(lambda: find_rows(index.snapshot, judged("d4")), "1 of 1 right documents", "encode the corpus")


def test_texts_are_found_where_ids_are_numbers(index):
    """Another order than the index's, a text whose title only the index has, and own texts, of which one is nowhere."""
    records = RetrievalSet.from_pairs(
        [("Bonn", "In Peru."), ("Kiel", "Bonn"), ("?", "Kiel"), ("Kiel", "York It is old.")]
    )
    found = judgements_by_text(index.snapshot, records.subset([0, 1]))
    assert find_rows(index.snapshot, found) == ([[3], [0, 5]], [[1], [1, 1]], [[5], []])
    check_refusal(lambda: judgements_by_text(index.snapshot, records), "1 of 4 right documents", "'Kiel'", "encode")


def test_top_k_accuracy_looks_for_answers_in_texts_and_not_in_titles(index):
    answered = [
        Example("where is York", ("england",)),  # second
        Example("what is old", ("York", "old")),  # first, by its text
        Example("which is it", ("Rome",)),  # a title only
        Example("where is Lima", ("peru", "norway")),  # fourth, before the fifth
    ]
    found = evaluate_answered(index.snapshot, answered, np.repeat(QUESTION, 4, 0), cutoffs=(1, 2, 4))
    assert found.ranks.tolist() == [[2], [1], [np.inf], [4]]
    assert found.metrics == {"accuracy@1": 1 / 4, "accuracy@2": 2 / 4, "accuracy@4": 3 / 4}
    assert found.top_ids.shape == (4, 4)
    assert evaluate_answered(index.snapshot, answered[3:], QUESTION, cutoffs=(3,)).metrics == {"accuracy@3": 0}
    assert Document("a", "York York is old.", {"title": "York"}).body == "York is old."
    assert Document("a", "York is old.", {"title": "Yo"}).body == "York is old."
    assert Document("a", "York is old.").body == "York is old."


def test_documents_that_are_deleted_meanwhile_hold_no_answer_and_are_not_mined(index):
    snapshot, answered = index.snapshot, [Example("where is York", ("england", "italy"))]
    index.delete(["d1"])
    found = evaluate_answered(snapshot, answered, QUESTION, cutoffs=(3,))
    assert (found.ranks.tolist(), found.top_ids.tolist()) == ([[3]], [[0, 1, 2]])
    records = RetrievalSet.from_pairs([("where is York", "York It is old.")])
    grown, ranked = rank_by_index(lambda side, texts: np.repeat(QUESTION, len(texts), 0), snapshot, records, 3)
    assert (ranked.rows.tolist(), ranked.scores.tolist()) == ([[0, 1, -1]], [[6, 4, 5]])
    assert grown.candidates == ("York It is old.", "Rome In Italy.")


def test_a_document_is_the_candidate_with_its_text_or_with_its_text_without_its_title(index):
    pairs = [("where is Rome", "In Italy."), ("York?", "York It is old."), ("?", "It is old.")]
    records = RetrievalSet.from_pairs(pairs)
    grown, ranked = rank_by_index(lambda side, texts: np.repeat(QUESTION, len(texts), 0), index.snapshot, records, 4)
    assert grown.candidates == (*records.candidates, "York A city in England.", "Lima In Peru.")
    assert ranked.rows.tolist() == [[1, 3, 0, 4]] * 3


@pytest.mark.parametrize(("scales", "depth"), [(None, 300), ((0.5, 1, 2), 7)])
def test_ranks_equal_those_of_all_scores_at_once(tmp_path, scales, depth):
    """Small whole numbers, so that scores are exact and many are equal; some are deleted, excluded and graded."""
    draw, count = np.random.default_rng(0), 230
    questions, candidates = (draw.integers(-2, 3, (n, 6)).astype(np.float32) for n in (20, count))
    right = [sorted(draw.choice(range(50, 150), draw.integers(1, 4), replace=False).tolist()) for _ in questions]
    gains = [draw.integers(1, 4, len(rows)).tolist() for rows in right]
    excluded = [draw.choice(range(150, 230), draw.integers(0, 3), replace=False).tolist() for _ in questions]
    embeddings = candidates
    if scales:
        factors = draw.choice(np.float32(scales), count)
        embeddings, candidates = Quantized(candidates.astype(np.int8), factors), candidates * factors[:, None]
    documents = [Document(f"d{n}", "") for n in range(count)]
    index = make_index(tmp_path / "i", embeddings, documents, metric="inner product")
    index.delete([f"d{n}" for n in range(20, 50)])
    found = evaluate_judged(index.snapshot, JudgementRows(right, gains, excluded), questions, depth=depth)
    scores = questions @ candidates.T
    scores[:, 20:50] = -np.inf
    for row, rows in zip(scores, excluded, strict=True):
        row[rows] = -np.inf
    positives = np.array([[*rows, *[-1] * (3 - len(rows))] for rows in right], np.int32)
    np.testing.assert_array_equal(found.ranks, metrics.ranks(scores, positives))
    assert (found.ranks[np.isfinite(found.ranks)] % 1 == 0.5).any()  # there are ties
    np.testing.assert_array_equal(found.top_ids, np.argsort(-scores, axis=1, kind="stable")[:, : min(depth, 200)])
    assert (found.questions, found.candidates) == (20, 200)
    assert found.metrics["mrr"] == pytest.approx(np.mean(1 / found.ranks.min(axis=1)))
