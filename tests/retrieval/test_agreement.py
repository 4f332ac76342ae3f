import itertools

import numpy as np
import pytest

from endx_jax.retrieval.agreement import question_agreement

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
    found = question_agreement(questions, QRELS, fewest=3)
    sse, sse_any = naive(questions, 3)
    assert found == {
        "answers": 2,
        "questions": 6,
        "sse": pytest.approx(sse, rel=1e-6),
        "sse_any": pytest.approx(sse_any, rel=1e-6),
    }
    assert abs(sse - sse_any) > 0.1


def test_equal_questions_have_none_and_opposite_ones_four():
    assert question_agreement([[1.0, 0.0], [3.0, 0.0]], [[0], [0]], fewest=2)["sse"] == 0
    assert question_agreement([[1.0, 0.0], [-2.0, 0.0]], [[0], [0]], fewest=2)["sse"] == 4


def test_without_an_answer_of_so_many_questions_there_is_nothing_to_say():
    assert question_agreement(np.eye(7), QRELS, fewest=4) == {}
