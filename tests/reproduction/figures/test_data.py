"""The arithmetic behind each figure, by hand."""

import numpy as np
import pytest
from helpers import one_line_error
from tiny_study import TinyStudy

from reproduction.figures import (
    minimum_questions,
    one_answer,
    overlap,
    precision_recall,
    relative,
    shared_answer,
    similarity,
)


def test_overlap_measures_all_pairs_and_draws_the_first():
    rng = np.random.default_rng(0)
    questions, answers = -9 + rng.normal(size=(40, 4)), 9 + rng.normal(size=(40, 4))
    found = overlap.clouds(questions, answers, drawn=12)
    assert np.shape(found["question"]) == np.shape(found["answer"]) == (12, 2)
    assert found["probe_accuracy"] == found["same_side_neighbours"] == 1.0


def test_similarity_of_blocks():
    cosines = np.array([[1, 0.9, 0.1, 0.2], [0.9, 1, 0.3, 0.4], [0.1, 0.3, 1, 0.3], [0.2, 0.4, 0.3, 1]])
    found = similarity.blocks(cosines, np.array([7, 7, 3, 3]))
    assert found["same"] == pytest.approx((0.9 + 0.3) / 2)
    assert found["other"] == pytest.approx((0.1 + 0.2 + 0.3 + 0.4) / 4)
    # 0.9 beats all four; 0.3 beats 0.1 and 0.2 and ties with 0.3.
    assert found["auc"] == pytest.approx((4 + 2.5) / 8)


def test_similarity_is_of_answers_with_enough_questions_of_their_own():
    # Question 2 has two answers: it stands under the first, which leaves the second with one.
    rows, groups = similarity.comparable([[0, 1, 2], [2, 3], [4, 5, 6], [7]], 2)
    assert rows == [0, 1, 2, 4, 5, 6]
    assert groups == [0, 0, 0, 2, 2, 2]
    with one_line_error("only one answer has 3 questions"):
        similarity.comparable([[0, 1, 2], [3]], 3)


def test_similarity_shows_answers_of_different_articles():
    groups, articles = [0, 0, 0, 1, 1, 1, 2, 2, 2], [*"aaaaaabbb"]  # answers 0 and 1 are of one article
    for seed in range(5):
        shown = similarity.sample(groups, articles, answers=3, questions=2, seed=seed)
        assert sorted(shown) in ([0, 1, 6, 7], [3, 4, 6, 7])
    assert len(similarity.sample(groups, None, answers=3, questions=2)) == 6


def test_spread_of_questions_of_one_answer():
    # Squared distances: 4 within the first answer, 16 within the second.
    questions, groups = np.array([[0.0, 0], [2, 0], [10, 0], [10, 4]]), np.array([5, 5, 8, 8])
    every = [np.sum((questions[i] - questions[j]) ** 2) for i in range(4) for j in range(i)]
    assert one_answer.spread(questions, groups) == pytest.approx(((4 + 16) / 2) / np.mean(every))
    assert one_answer.spread(7 * questions + 1, groups) == pytest.approx(one_answer.spread(questions, groups))


def test_outcomes_part_the_questions():
    first = np.array([[1.0, np.inf], [1.0, 2.0], [3.0, 4.0], [1.5, np.inf]])
    second = np.array([[1.0, np.inf], [2.0, 3.0], [1.0, 9.0], [4.0, np.inf]])
    found = {name: rows.tolist() for name, rows in shared_answer.outcomes(first, second).items()}
    assert found == {"both": [0], "first": [1], "second": [2], "neither": [3]}


def test_minimum_questions_ranks_in_both_pools(monkeypatch):
    monkeypatch.setattr(minimum_questions, "MOST", 5)
    found = minimum_questions.data(TinyStudy("near", "far", answers=6))
    assert found["minimum"] == [1, 2, 3, 4, 5]
    assert found["answers"] == [6, 6, 6, 6, 5]  # all but the first have one question more
    assert found["questions"] == [24, 24, 24, 24, 24 - 4 + 1]
    near, far = found["models"]
    assert near["whole"][0] == near["cut"][0] > far["whole"][0]
    assert far["cut"][4] >= far["whole"][4]


def test_a_thinned_curve_keeps_its_ends():
    recall = np.linspace(0.1, 1, 10)
    kept, precision = precision_recall.thinned(recall, 1 - recall, 4)
    np.testing.assert_allclose(kept, [0.1, 0.4, 0.7, 1.0])
    np.testing.assert_allclose(precision, 1 - kept)
    assert precision_recall.thinned(recall, recall, 10)[0] is recall


def test_gains_are_relative_to_the_mean_of_the_baseline():
    found = relative.gains({"ade": [[0.4, 0.6], [0.2, 0.2]], "sde": [[0.75, 0.5], [0.1, 0.3]]}, "ade")
    np.testing.assert_allclose(found["ade"], [[-20, 20], [0, 0]], atol=1e-9)
    np.testing.assert_allclose(found["sde"], [[50, 0], [-50, 50]], atol=1e-9)
