import numpy as np
import pytest
from small_records import records_of

from endx_jax.data.sets.documents import Document, FoundDocument
from endx_jax.ranking.rerank import evaluate_pairs, rerank_answers

Q, N = 5, 9
DRAW = np.random.default_rng(0)
FIRST = DRAW.integers(0, 4, (Q, N)).astype(np.float32)  # with ties
PAIRS = DRAW.normal(size=(Q, N)).astype(np.float32)
RECORDS = records_of([(0,), (8,), (3, 5), (2,), (7,)], [f"c{n}" for n in range(N)])


def score(pairs):
    return PAIRS[pairs[:, 0], pairs[:, 1]]


def first(start, stop):
    return FIRST[start:stop]


def expected_rank(question, right, top):
    """Its place among the scored ones, if it is; else below them, a tie in the middle of its places."""
    best = np.argsort(-FIRST[question], kind="stable")[:top]
    if right in best:
        return 1 + (PAIRS[question, best] > PAIRS[question, right]).sum()
    others = [c for c in range(N) if c not in best and c not in RECORDS.qrels[question]]
    own = FIRST[question, right]
    above = sum(FIRST[question, c] > own for c in others)
    tied = sum(FIRST[question, c] == own for c in others)
    right_above = sum(c in best or FIRST[question, c] > own for c in RECORDS.qrels[question] if c != right)
    wrong_best = sum(c not in RECORDS.qrels[question] for c in best)
    return 1 + wrong_best + right_above + above + tied / 2


@pytest.mark.parametrize("top", [1, 3, 8])
def test_the_best_of_the_first_stage_are_ordered_by_pair_scores_and_the_others_stay_below(top):
    found = evaluate_pairs(score, first, RECORDS, top=top, depth=N)
    for question in (0, 1, 3, 4):  # one right answer each
        (right,) = RECORDS.qrels[question]
        assert found.ranks[question, 0] == expected_rank(question, right, top)
    for question in range(Q):
        best = np.argsort(-FIRST[question], kind="stable")[:top]
        order = best[np.argsort(-PAIRS[question, best], kind="stable")]
        rest = [c for c in np.argsort(-FIRST[question], kind="stable") if c not in best]
        assert found.top_ids[question].tolist() == [*order, *rest]
        np.testing.assert_array_equal(found.top_scores[question, :top], PAIRS[question, order])


@pytest.mark.parametrize("top", [0, N, 100])
def test_all_pairs_of_a_small_pool_are_scored_without_a_first_stage(top):
    found = evaluate_pairs(score, None, RECORDS, top=top)
    assert found.top_ids.tolist() == np.argsort(-PAIRS, axis=1).tolist()


def test_scores_of_the_first_stage_that_are_close_stay_apart_below_large_pair_scores():
    close = np.float32(1e8) + 8 * np.arange(N, dtype=np.float32)[None].repeat(Q, 0)
    equal = lambda pairs: np.full(len(pairs), -12345.6, np.float32)  # noqa: E731
    found = evaluate_pairs(equal, lambda start, stop: close[start:stop], RECORDS, top=2)
    assert found.top_ids[0].tolist() == [7, 8, *range(6, -1, -1)]  # of equal scores the lower row comes first
    assert (np.diff(found.top_scores[0, 1:]) < 0).all()


def test_lists_of_different_lengths_keep_their_own_answers():
    def scores_of(questions, answers):
        return lambda pairs: np.array([PAIRS[q, int(answers[a])] for q, a in pairs], np.float32)

    first = [[3, 1], [], [4], [0, 5, 2], []]
    answers = [[FoundDocument(n, 0.0, Document(f"d{row}", str(row))) for n, row in enumerate(own, 1)] for own in first]
    found = rerank_answers(scores_of, ["?"] * 5, answers, k=9)
    best = [[int(answer.document.text) for answer in own] for own in found]
    assert best == [sorted(own, key=lambda c, n=n: -PAIRS[n, c]) for n, own in enumerate(first)]
    assert found[2] == [FoundDocument(1, float(PAIRS[2, 4]), answers[2][0].document)]


def test_documents_are_compared_by_their_texts_and_get_new_ranks():
    def scores_of(questions, answers):
        return lambda pairs: np.array([-len(questions[q]) * len(answers[a]) for q, a in pairs], np.float32)

    documents = [Document("x", "aaa"), Document("y", "a"), Document("z", "aa")]
    answers = [FoundDocument(rank, 9.0 - rank, document) for rank, document in enumerate(documents, start=1)]
    found = rerank_answers(scores_of, ["??", "?"], [answers, answers[:1]], k=2)
    assert found[0] == [FoundDocument(1, -2.0, documents[1]), FoundDocument(2, -4.0, documents[2])]
    assert found[1] == [FoundDocument(1, -3.0, documents[0])]
