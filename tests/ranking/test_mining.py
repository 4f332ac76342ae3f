import tracemalloc

import numpy as np
import pytest
from small_index import embed, make_index
from small_records import records_of

from endx_jax.data.formats.mined import Negative
from endx_jax.data.sets.documents import Document
from endx_jax.index.index_evaluation import rank_by_index
from endx_jax.ranking.bm25 import BM25
from endx_jax.ranking.hybrid import Hybrid
from endx_jax.ranking.mining import (
    RERANKED,
    Margin,
    MiningSettings,
    Ranked,
    SimilaritiesOfTexts,
    mine_negatives,
    rank_by_bm25,
    rank_by_embeddings,
    rank_by_hybrid,
    rank_by_pairs,
)

NOTHING = {"right": 0, "equal text": 0, "margin": 0, "teacher": 0}
QUESTIONS, CANDIDATES = 12, 30


def ranked(scores, qrels, depth: int | None = None) -> Ranked:
    """All candidates by scores [Q, N]; of equal ones the first."""
    scores = np.asarray(scores, np.float32)
    rows = np.argsort(-scores, axis=1, kind="stable")[:, :depth]
    lowest = np.asarray([own[list(right)].min() for own, right in zip(scores, qrels, strict=True)])
    return Ranked(rows.astype(np.int32), np.take_along_axis(scores, rows, axis=1), lambda: lowest)


def by_hand(scores, qrels, texts, settings, teacher=None) -> list[list[int]]:
    """The naive twin: every rule as it is said, one candidate after the other."""
    found = []
    for question, right in enumerate(qrels):
        order = sorted(range(len(texts)), key=lambda row, q=question: (-scores[q][row], row))
        kept: list[int] = []
        for rank, row in enumerate(order, start=1):
            if not settings.first_rank <= rank <= settings.last_rank or row in right or len(kept) == settings.negatives:
                continue
            earlier = order[settings.first_rank - 1 : rank - 1]
            if any(texts[row].lower() == texts[other].lower() for other in (*right, *earlier)):
                continue
            if teacher is None and settings.margin.absolute is not None:
                bound = min(scores[question][other] for other in right) - settings.margin.absolute
                if scores[question][row] > bound:
                    continue
            margin = settings.margin.absolute or 0.0
            if teacher is not None and teacher[question][row] > min(teacher[question][o] for o in right) - margin:
                continue
            kept.append(row)
        found.append(kept)
    return found


def test_right_and_repeated_candidates_are_left_out_and_ranks_count_all():
    qrels = [(1,)]
    texts = ["first", "right one", "Right  ONE", "second", "SECOND ", "third"]
    mined = mine_negatives(ranked([[0.9, 0.8, 0.7, 0.6, 0.5, 0.4]], qrels), records_of(qrels, texts), MiningSettings())
    assert [(one.row, one.rank) for one in mined.negatives[0]] == [(0, 1), (3, 4), (5, 6)]
    assert mined.negatives[0][1].score == pytest.approx(0.6)
    assert mined.dropped == NOTHING | {"right": 1, "equal text": 2}


def test_texts_are_compared_without_copies_of_all():
    texts = ["x" * 10_000 + str(n) for n in range(300)]
    own, records = ranked([np.arange(300)], [(0,)]), records_of([(0,)], texts)
    tracemalloc.start()
    mine_negatives(own, records, MiningSettings())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < sum(map(len, texts)) / 4


def test_a_question_s_own_document_and_text_are_no_negatives():
    texts = ["where is it?", "there", "Where  is it?", "here", "anywhere"]
    right, settings = [(1,)], MiningSettings(negatives=2)
    records = records_of(right, texts, ["Where is it?"])
    mined = mine_negatives(ranked([[5, 4, 3, 2, 1]], right), records, settings)
    assert [one.row for one in mined.negatives[0]] == [3, 4]
    assert mined.dropped == NOTHING | {"right": 1, "equal text": 2}
    records = records_of(right, "abcde", excluded=((0,),))
    mined = mine_negatives(ranked([[5, 4, 3, 2, 1]], right), records, settings)
    assert [one.row for one in mined.negatives[0]] == [2, 3]


@pytest.mark.parametrize(
    ("margin", "kept"),
    [
        (Margin(), [0, 2, 3, 4]),
        (Margin(absolute=0.0), [2, 3, 4]),
        (Margin(absolute=0.25), [3, 4]),  # 0.5 - 0.25 is a negative's at the most
        (Margin(relative=0.5), [3, 4]),  # so is half of 0.5
        (Margin(absolute=0.25, relative=0.75), [4]),  # the lower of both counts
    ],
)
def test_a_negative_scores_a_margin_below_every_right_candidate(margin, kept):
    qrels = [(1, 5)]  # of 0.5 and 0.75: the lowest counts
    found = ranked([[0.625, 0.5, 0.375, 0.25, 0.125, 0.75]], qrels)
    mined = mine_negatives(found, records_of(qrels, "abcdef"), MiningSettings(margin=margin))
    assert [one.row for one in mined.negatives[0]] == kept
    assert mined.dropped["margin"] == 4 - len(kept)
    # A share of a score below zero lowers the bound too.
    assert Margin(relative=0.5).limit(np.asarray([2.0, -2.0])).tolist() == [1.0, -3.0]


def test_a_teacher_is_asked_about_the_best_until_there_are_enough():
    asked = []

    def teacher(pairs):
        asked.append(pairs.tolist())
        return np.asarray([0.5 if row == 0 else (0.9 if row in (1, 2) else 0.1) for _, row in pairs], np.float32)

    qrels, settings = [(0,)], MiningSettings(negatives=2)
    mined = mine_negatives(ranked([np.arange(9, 0, -1)], qrels), records_of(qrels, "abcdefghi"), settings, teacher)
    assert [one.row for one in mined.negatives[0]] == [3, 4]
    assert asked == [[[0, 0]], [[0, 1], [0, 2]], [[0, 3], [0, 4]]]  # the right one; what it doubts; what it does not
    assert mined.dropped == NOTHING | {"right": 1, "teacher": 2}


def test_questions_without_a_candidate_left_have_no_negatives():
    qrels = [(0,), (1,)]
    rows = np.asarray([[0, -1], [0, 1]], np.int32)
    found = Ranked(rows, np.ones((2, 2), np.float32), lambda: np.ones(2))
    records = records_of(qrels, "ab")
    mined = mine_negatives(found, records, MiningSettings(), lambda pairs: np.ones(len(pairs), np.float32))
    assert mined.negatives == [[], [Negative(0, 1.0, 1)]]


@pytest.mark.parametrize("seed", range(2))
def test_it_is_what_the_rules_say_one_candidate_after_the_other(seed):
    draw = np.random.default_rng(seed)
    scores = draw.integers(0, 30, (20, 40)) / 8  # many ties
    teacher = draw.random((20, 40)).astype(np.float32)
    texts = [f"Text {n}" if n % 3 else f"text {n % 5}" for n in range(40)]
    qrels = [tuple(sorted(draw.choice(40, draw.integers(1, 4), replace=False).tolist())) for _ in range(20)]
    for settings, judge in (
        (MiningSettings(negatives=3, first_rank=1 + seed, last_rank=25), None),
        (MiningSettings(negatives=5, last_rank=30, margin=Margin(absolute=0.5)), None),
        (MiningSettings(negatives=4, last_rank=40), lambda pairs: teacher[pairs[:, 0], pairs[:, 1]]),
        (MiningSettings(last_rank=40, margin=Margin(absolute=0.1)), lambda pairs: teacher[pairs[:, 0], pairs[:, 1]]),
    ):
        found = mine_negatives(ranked(scores, qrels, settings.last_rank), records_of(qrels, texts), settings, judge)
        expected = by_hand(scores, qrels, texts, settings, None if judge is None else teacher)
        assert [[one.row for one in own] for own in found.negatives] == expected
        assert any(expected)


@pytest.fixture(scope="module")
def records():
    qrels = np.random.default_rng(0).integers(0, CANDIDATES, (QUESTIONS, 1)).tolist()
    return records_of(qrels, [f"text {n}" for n in range(CANDIDATES)], [f"question {n}" for n in range(QUESTIONS)])


def encode(side, texts):
    return embed(texts)


def index_of(folder, ids, texts):
    documents = [Document(name, text) for name, text in zip(ids, texts, strict=True)]
    return make_index(folder, encode("answer", texts), documents, metric="inner product").snapshot


def test_embeddings_are_ranked_exactly(records):
    ranked = rank_by_embeddings(encode, records, CANDIDATES)
    scores = encode("question", records.questions) @ encode("answer", records.candidates).T
    assert ranked.rows.tolist() == np.argsort(-scores, axis=1).tolist()
    np.testing.assert_allclose(ranked.scores, -np.sort(-scores, axis=1), rtol=1e-4, atol=1e-5)
    right = [scores[question, row] for question, (row,) in enumerate(records.qrels)]
    np.testing.assert_allclose(ranked.lowest_right(), right, rtol=1e-5)


def test_an_index_of_the_same_candidates_gives_the_same_negatives(records, tmp_path):
    order = np.random.default_rng(1).permutation(CANDIDATES)
    texts = [records.candidates[n] for n in order]
    snapshot = index_of(tmp_path / "index", [f"other{n}" for n in order], texts)
    settings = MiningSettings(negatives=4, last_rank=25, margin=Margin(absolute=0.1))
    memory = mine_negatives(rank_by_embeddings(encode, records, CANDIDATES), records, settings)
    grown, ranked = rank_by_index(encode, snapshot, records, CANDIDATES)
    assert grown == records
    assert mine_negatives(ranked, records, settings) == memory
    assert memory.dropped["margin"] > 0
    assert any(memory.negatives)


def test_documents_that_only_the_index_has_are_candidates_too(records, tmp_path):
    texts = [*records.candidates[:27], "text 3", "a stranger", "another"]  # one text twice
    snapshot = index_of(tmp_path / "index", [f"d{n}" for n in range(29)] + ["x"], texts)
    grown, ranked = rank_by_index(encode, snapshot, records, CANDIDATES)
    assert grown.candidates == (*records.candidates, "a stranger", "another")
    assert grown.candidate_ids[-2:] == ("d28+", "x")  # d28 is another candidate's
    assert grown.qrels == records.qrels
    everything = [*range(27), 3, CANDIDATES, CANDIDATES + 1]
    assert sorted(ranked.rows[0].tolist()) == sorted(everything)
    mined = mine_negatives(ranked, grown, MiningSettings(negatives=CANDIDATES))
    assert mined.dropped["equal text"] + sum(row == (3,) for row in records.qrels) == QUESTIONS


def test_bm25_ranks_what_shares_a_word():
    texts = ("dogs bark", "a cat sleeps", "the cat", "sleep", "zebras")
    records = records_of([(1,), (0, 4)], texts, ["cats sleeping", "zebra"])
    ranked = rank_by_bm25(records, 4)
    assert ranked.rows[0].tolist()[0] == 1
    assert set(ranked.rows[0].tolist()) == {1, 2, 3, -1}
    assert ranked.rows[1].tolist() == [4, -1, -1, -1]
    assert ranked.lowest_right().tolist() == [ranked.scores[0, 0], 0.0]
    assert rank_by_bm25(records, 100).rows.shape == (2, 5)


@pytest.mark.parametrize("weight", [0.0, 0.5, 3.0])
def test_the_hybrid_ranks_the_sum_of_dense_and_bm25(records, weight):
    ranked = rank_by_hybrid(encode, Hybrid(weight), records, 7)
    dense = encode("question", records.questions) @ encode("answer", records.candidates).T
    bm25 = BM25.of_texts(records.candidates, records.text_language)
    scores = dense + weight * bm25.scaled_block(records.questions)(0, QUESTIONS)
    assert ranked.rows.tolist() == np.argsort(-scores, axis=1)[:, :7].tolist()
    np.testing.assert_allclose(ranked.scores, -np.sort(-scores, axis=1)[:, :7], rtol=1e-5)
    assert ranked.lowest_right() == pytest.approx([scores[n, row] for n, (row,) in enumerate(records.qrels)], rel=1e-5)


def test_a_reranker_chooses_among_more_than_it_ranks():
    # BM25 ranks a shorter text higher.
    records = records_of([(0,)], ["cat" + " sleeps" * n for n in range(RERANKED + 5)], ["cat"])
    ranked = rank_by_pairs(lambda *texts: lambda pairs: 2 * pairs[:, 1].astype(np.float32), records, 2)
    best = [RERANKED - 1, RERANKED - 2]
    assert (ranked.rows.tolist(), ranked.scores.tolist()) == ([best], [[2 * row for row in best]])
    assert ranked.lowest_right().tolist() == [0.0]


def test_a_text_is_encoded_once_and_only_when_it_is_asked_about():
    asked: list[str] = []

    def encode(side, texts):
        asked.extend(texts)
        return np.asarray([[float(text), 1.0] for text in texts], np.float32)

    score = SimilaritiesOfTexts(encode)(["1", "2"], ["10", "20", "30"])
    assert score(np.asarray([[0, 2], [1, 2]])).tolist() == [31.0, 61.0]
    assert score(np.asarray([[1, 0], [1, 2], [0, 0]])).tolist() == [21.0, 61.0, 11.0]
    assert sorted(asked) == ["1", "10", "2", "30"]


def test_strata_are_over_all_scores_of_what_the_teacher_confirms_and_few_candidates_are_all_taken():
    qrels, texts = [(0,), (1,)], [f"text {n}" for n in range(10)]
    base = np.array([np.arange(10)[::-1], np.roll(np.arange(10)[::-1], 1)], float)
    teacher = np.array([[9, 3, 1, 8, 2, 7, 0, 6, 5, 4], np.arange(10)], float)

    def mined(qrels, base, scores, *, confirms=False, **settings):
        def score(pairs):
            return scores[pairs[:, 0], pairs[:, 1]]

        judge, records = score if confirms else None, records_of(qrels, texts[: base.shape[1]])
        return mine_negatives(ranked(base, qrels), records, MiningSettings(**settings), judge, strata=score)

    found = mined(qrels, base, teacher, negatives=3).negatives
    # Question 0: the teacher's order is 3 5 7 | 8 9 1 | 4 2 6. Question 1: 9 8 7 | 6 5 4 | 3 2 0.
    assert [sorted(one.row for one in own) for own in found] == [[2, 5, 9], [2, 5, 8]]
    assert all([one.rank for one in own] == sorted(one.rank for one in own) for own in found)
    base, scores = np.array([[6.0, 5, 4, 3, 2, 1]]), np.array([[3.0, 9, 1, 2, 8, 0]])
    # It confirms 3, 2 and 5, in this order.
    for negatives, expected in ((2, [3, 5]), (1, [2]), (9, [2, 3, 5])):
        found = mined([(0,)], base, scores, confirms=True, negatives=negatives)
        assert [one.row for one in found.negatives[0]] == expected
        assert found.dropped["teacher"] == 2
    assert mined([(0,)], base, scores, last_rank=1).negatives == [[]]
