import itertools
import math
from statistics import NormalDist

import numpy as np
import pytest
from refusals import check_refusal

from reproduction.separation import probe_accuracy, question_spread, same_side_neighbours

pytest.importorskip("sklearn", reason="scikit-learn is not installed")


def clouds(questions, answers, width, shift=0.0, seed=0):
    """Two normal clouds of unit variance whose centres lie `shift` apart, on a diagonal that is no feature's axis."""
    rng = np.random.default_rng(seed)
    question = rng.standard_normal((questions, width))
    answer = rng.standard_normal((answers, width)) + shift / math.sqrt(width)
    return question, answer


def five_standard_errors(drawn, accuracy=0.5):
    """Five standard deviations of the share of right answers among the `drawn` examples that one probe is tried on."""
    return 5 * math.sqrt(accuracy * (1 - accuracy) / drawn)


# In the last two a plane parts any labelling of the fitting half: measured there, the accuracy would be 1.
@pytest.mark.parametrize(("drawn", "width"), [(1000, 2), (1000, 768), (200, 768)])
def test_one_cloud_gives_a_half(drawn, width):
    for seed in (0, 1):
        question, answer = clouds(drawn, drawn, width, seed=seed)
        assert probe_accuracy(question, answer, seed=seed) == pytest.approx(0.5, abs=five_standard_errors(drawn))


@pytest.mark.parametrize(("shift", "drawn", "width"), [(1.0, 4000, 8), (3.0, 4000, 8), (20.0, 400, 768)])
def test_a_known_shift_gives_the_accuracy_of_the_best_plane(shift, drawn, width):
    """The plane halfway between the centres is shift / 2 standard deviations from each: it is right Phi(shift / 2)."""
    best = NormalDist().cdf(shift / 2)
    found = probe_accuracy(*clouds(drawn, drawn, width, shift))
    assert found == pytest.approx(best, abs=five_standard_errors(drawn, best))


def test_both_kinds_count_alike_whatever_their_numbers():
    question, answer = clouds(4000, 200, 16)
    for pair in ((question, answer), (answer, question)):
        assert probe_accuracy(*pair) == pytest.approx(0.5, abs=five_standard_errors(200))
    assert probe_accuracy(question, answer + 9) == 1.0


def test_no_more_than_the_limit_are_drawn_and_each_is_measured_once():
    question, answer = clouds(300, 400, 16, shift=1.0)
    shares = [20 * probe_accuracy(question, answer, seed=seed, limit=10) for seed in range(8)]
    assert shares == pytest.approx(np.round(shares))  # of 10 questions and 10 answers
    assert any(round(share) % 2 for share in shares)  # of one half they would be even
    assert probe_accuracy(question, answer, limit=11) == probe_accuracy(question, answer, limit=10)


def test_a_pair_in_one_row_stays_in_one_half():
    both, _ = clouds(200, 200, 64)
    assert probe_accuracy(both, both) == 0.5
    # A row away from each other, half of them are parted, and what was learnt of one is wrong for the other.
    assert probe_accuracy(both, np.roll(both, 1, axis=0)) < 0.4


def test_collapsed_embeddings_give_a_half_and_those_of_a_diverged_model_are_refused():
    assert probe_accuracy(np.full((50, 768), 0.036, np.float32), np.full((70, 768), 0.036, np.float32)) == 0.5
    question, answer = clouds(8, 8, 16)
    for wrong in (np.nan, np.inf):
        answer[5, 3] = wrong
        check_refusal(lambda: probe_accuracy(question, answer), "not all finite")


def test_neighbours_by_hand():
    radians = np.deg2rad
    question = np.stack([[np.cos(a), np.sin(a)] for a in radians([0, 1, 90, 180])])
    answer = np.stack([[np.cos(a), np.sin(a)] for a in radians([88, 185, 270, 275])])
    # Questions 0 and 1 have each other; 90 and 180 have answers 88 and 185. Answers 88 and 185 have questions 90 and
    # 180; 270 and 275 have each other: 4 of 8.
    assert same_side_neighbours(question, 3 * answer, neighbours=1) == 4 / 8
    # All 7 others are neighbours: 3 of them of the own side.
    assert same_side_neighbours(question, answer, neighbours=50) == pytest.approx(3 / 7)


QRELS = [[0], [0, 1], [0], [1], [2], [1], [3]]  # answer 0 has three questions, 1 has three, 2 and 3 have one


def naive(questions, fewest):
    """Over all pairs, one by one: the mean squared distances of those with an answer in common, and of all."""
    unit = questions / np.linalg.norm(questions, axis=1, keepdims=True)
    asked = {answer: [q for q, right in enumerate(QRELS) if answer in right] for answer in range(4)}
    asked = {answer: rows for answer, rows in asked.items() if len(rows) >= fewest}
    together = [pair for rows in asked.values() for pair in itertools.combinations(rows, 2)]

    def mean(pairs):
        return np.mean([np.sum((unit[i] - unit[j]) ** 2) for i, j in pairs])

    return mean(together), mean(list(itertools.combinations(range(len(QRELS)), 2)))


def test_every_pair_of_questions_with_an_answer_in_common_counts_once():
    questions = np.random.default_rng(0).normal(size=(len(QRELS), 4)).astype(np.float32)
    sse, sse_any = naive(questions, 3)
    assert question_spread(questions, QRELS, fewest=3) == pytest.approx(sse / sse_any, rel=1e-6)
    assert abs(sse - sse_any) > 0.1
