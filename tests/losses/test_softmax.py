"""In-batch softmax against visible arithmetic, and its mask against loops; test_pair_scores.py has its twin."""

import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import without_metrics

from endx_jax.losses import false_negative_mask, in_batch_softmax

# Compiled, as it is in training and as is quicker here; one test holds it against the loss run step by step.
softmax_loss = jax.jit(without_metrics(in_batch_softmax), static_argnames="direction")
softmax_loss_and_metrics = jax.jit(in_batch_softmax, static_argnames="direction")

B, E = 7, 4
IDS = {
    "question_id": np.array([0, 1, 2, 0, 3, 4, -1]),  # rows 0 and 3 ask the same
    "answer_id": np.array([5, 6, 5, 7, 8, -1, -1]),  # rows 0 and 2 give the same; two are unknown
    "positive_ids": np.array([[5, 8], [6, -1], [5, -1], [7, 6], [8, -1], [-1, -1], [5, -1]]),
}


def ids(names) -> dict:
    return {name: jnp.asarray(IDS[name], jnp.int32) for name in names}


def is_false_negative(i: int, j: int, names) -> bool:
    """Whether answer j is no negative of question i, read off the ids one pair at a time."""
    if i == j:
        return False
    question, answer, positives = IDS["question_id"], IDS["answer_id"], IDS["positive_ids"]
    return (
        ("question_id" in names and question[i] == question[j] >= 0)
        or ("answer_id" in names and answer[i] == answer[j] >= 0)
        or ("positive_ids" in names and answer[j] >= 0 and answer[j] in positives[i])
    )


def test_a_visible_example():
    question, answer = jnp.array([[1.0, 0.0], [0.0, 2.0]]), jnp.array([[3.0, 0.0], [1.0, 1.0]])
    # Scores at temperature 0.5: [[3, 1], [0, 2]] / 0.5 = [[6, 2], [0, 4]].
    rows = [math.log(math.exp(6) + math.exp(2)) - 6, math.log(math.exp(0) + math.exp(4)) - 4]
    columns = [math.log(math.exp(6) + math.exp(0)) - 6, math.log(math.exp(2) + math.exp(4)) - 4]
    expected = {
        "question_to_answer": sum(rows) / 2,
        "answer_to_question": sum(columns) / 2,
        "sum": sum(rows) / 2 + sum(columns) / 2,
        "mean": (sum(rows) + sum(columns)) / 4,
    }
    for direction, value in expected.items():
        found = softmax_loss(question, answer, temperature=0.5, direction=direction)
        assert float(found) == pytest.approx(value, rel=1e-5)
    assert softmax_loss(question[:1], answer[:1], direction="sum") == 0  # a single pair has no negative, either way


def test_large_scores_do_not_cancel():
    """Scores of 1e6 are a sixteenth apart in float32; a margin of 1 must still be 1."""
    question, answer = jnp.array([[1000.0], [1000.0]]), jnp.array([[1000.0], [999.999]])
    margin = 1000.0 * (1000.0 - float(np.float32(999.999)))
    rows = [math.log1p(math.exp(-margin)), math.log1p(math.exp(margin))]
    assert float(softmax_loss(question, answer)) == pytest.approx(sum(rows) / 2, rel=0.05)
    # Where one pair counts its only term is its own, at any scale.
    where = jnp.array([True, False])
    assert float(softmax_loss(question, answer, temperature=1e-3, where=where)) == 0
    hard = jnp.array([[[999.999]]])
    found = softmax_loss(jnp.array([[1000.0]]), jnp.array([[1000.0]]), hard_negatives=hard)
    assert float(found) == pytest.approx(math.log1p(math.exp(-margin)), rel=0.05)


def test_the_mask_marks_equal_questions_equal_answers_and_known_positives():
    for names in ([], ["question_id"], ["answer_id"], ["answer_id", "positive_ids"], [*IDS]):
        mask = false_negative_mask(**ids(names))
        expected = [[is_false_negative(i, j, names) for j in range(B)] for i in range(B)]
        np.testing.assert_array_equal(False if mask is None else mask, expected)
    # Row 0: 2 gives the same answer, 3 asks the same question, 4's answer 8 is a known positive.
    np.testing.assert_array_equal(np.flatnonzero(mask[0]), [2, 3, 4])


# Metrics.


def test_the_metrics_of_a_visible_example():
    question = jnp.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [-1.0, 0.0]])
    answer = jnp.array([[1.0, 0.0], [1.0, 0.5], [0.0, 2.0], [-1.0, 0.0]])
    # Scores [[1, 1, 0, -1], [0, 0.5, 2, 0], [1, 1.5, 2, -1], [-1, -1, 0, 1]]: the first is a draw, the second is lost.
    known = {"question_id": jnp.arange(4), "where": jnp.ones(4, bool)}
    _, metrics = softmax_loss_and_metrics(question, answer, **known)
    assert metrics == {"in_batch_accuracy": 2 / 4, "masked_fraction": 0}
    # Questions 1 and 2 are the same: of 12 pairs off the diagonal two are left out, and question 1 has won.
    known["question_id"] = jnp.array([0, 1, 1, 2])
    loss, metrics = softmax_loss_and_metrics(question, answer, **known)
    assert loss == softmax_loss(question, answer, **known)
    assert metrics["in_batch_accuracy"] == 3 / 4
    assert float(metrics["masked_fraction"]) == pytest.approx(2 / 12)
    # Without pair 1 the draw is won; hard negatives are not looked at, and nothing is left to mask.
    known["where"] = jnp.array([True, False, True, True])
    _, metrics = softmax_loss_and_metrics(question, answer, hard_negatives=10 * jnp.ones((4, 1, 2)), **known)
    assert metrics == {"in_batch_accuracy": 1, "masked_fraction": 0}


def test_metrics_where_nothing_is_compared():
    for where, accuracy in ((jnp.zeros(3, bool), 0), (jnp.arange(3) == 1, 1)):
        _, metrics = softmax_loss_and_metrics(jnp.ones((3, 2)), jnp.ones((3, 2)), where=where)
        assert metrics == {"in_batch_accuracy": accuracy, "masked_fraction": 0}


# Hard negatives.


def test_a_visible_example_of_hard_negatives():
    question, answer = jnp.array([[1.0, 0.0], [0.0, 2.0]]), jnp.array([[3.0, 0.0], [1.0, 1.0]])
    hard = jnp.array([[[1.0, 0.0]], [[2.0, 1.0]]])
    # Scores at temperature 0.5: answers [[6, 2], [0, 4]], hard negatives [[2, 4], [0, 4]].
    rows = [math.log(math.exp(6) + 2 * math.exp(2) + math.exp(4)) - 6, math.log(2 + 2 * math.exp(4)) - 4]
    found = softmax_loss(question, answer, temperature=0.5, hard_negatives=hard)
    assert float(found) == pytest.approx(sum(rows) / 2, rel=1e-5)
    # The first hard negative is the second question's answer: only the first question has it as a negative.
    rows[1] = math.log(1 + 2 * math.exp(4)) - 4
    known = {"answer_id": jnp.array([10, 11]), "hard_negative_ids": jnp.array([[11], [12]])}
    found = softmax_loss(question, answer, temperature=0.5, hard_negatives=hard, **known)
    assert float(found) == pytest.approx(sum(rows) / 2, rel=1e-5)


@pytest.mark.parametrize("tile", [None, 2])
def test_no_hard_negatives_for_each_question_are_none(tile):
    question, answer = jnp.eye(3), jnp.ones((3, 3))
    none = {"hard_negatives": jnp.zeros((3, 0, 3)), "hard_negative_ids": jnp.zeros((3, 0), int)}
    value = jax.jit(jax.value_and_grad(lambda q, **more: in_batch_softmax(q, answer, tile=tile, **more)[0]))
    chex.assert_trees_all_close(value(question, **none, answer_id=jnp.arange(3)), value(question), rtol=1e-6)
