"""Matching of sampled pairs against a loop over them, whole and split over devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import row_keys, split_over, without_metrics

from endx_jax import losses
from endx_jax.losses.matching import EDGE, binary_cross_entropy, draw_others

sampled_matching = without_metrics(losses.sampled_matching)

B, E, K = 8, 4, 3
IDS = {
    "question_id": np.array([0, 1, 2, 3, 4, 5, 0, 7]),
    "answer_id": np.array([0, 1, 2, 3, 2, 5, 6, -1]),
    "positive_ids": np.array([[0, 5], [1, -1], [2, -1], [3, 1], [2, -1], [5, -1], [6, -1], [-1, -1]]),
}


def drawn_pairs():
    draw = np.random.default_rng(0)
    question, answer = (draw.normal(size=(B, E)).astype(np.float32) for _ in range(2))
    return question, answer, draw.integers(0, B, (B, K))


def by_loop(question, answer, drawn, kind, ids, where):
    """Every pair one by one, in float64."""
    found = []

    def add(i, j, right):
        q, a = question[i].astype(np.float64), answer[j].astype(np.float64)
        cosine = q @ a / np.sqrt(q @ q) / np.sqrt(a @ a)
        probability = (1 + cosine) / 2
        found.append((cosine - right) ** 2 if kind == "mse" else -np.log(probability if right else 1 - probability))

    for i in np.flatnonzero(where):
        add(i, i, 1)
        for j in drawn[i]:
            same = i == j
            if ids:
                right = {ids["answer_id"][i], *ids["positive_ids"][i]} - {-1}
                same |= ids["question_id"][i] == ids["question_id"][j] or ids["answer_id"][j] in right
            if where[j] and not same:
                add(i, j, 0)
    return np.mean(found)


@pytest.mark.parametrize("where", [np.ones(B, bool), np.arange(B) % 3 > 0], ids=["all", "some"])
@pytest.mark.parametrize(
    ("kind", "ids"), [("mse", {}), ("mse", IDS), ("bce", IDS)], ids=["mse", "mse, ids", "bce, ids"]
)
def test_the_loss_is_the_mean_over_all_pairs(kind, ids, where):
    question, answer, drawn = drawn_pairs()
    compute = jax.jit(sampled_matching, static_argnames="kind")
    found = compute(question, answer, drawn, kind=kind, where=where, **ids)
    np.testing.assert_allclose(found, by_loop(question, answer, drawn, kind, ids, where), rtol=1e-5)


def test_split_over_devices_are_the_same_value_and_gradients():
    question, answer, drawn = drawn_pairs()
    whole = functools.partial(sampled_matching, kind="bce")

    def compute(question, answer, drawn, ids):
        return whole(question, answer, drawn, axis_name="data", **ids)

    found = jax.jit(jax.value_and_grad(split_over(8, compute), (0, 1)))(question, answer, drawn, IDS)
    expected = jax.jit(jax.value_and_grad(lambda q, a: whole(q, a, drawn, **IDS), (0, 1)))(question, answer)
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-6), found, expected)
    assert np.abs(found[1][1]).max() > 1e-2


def test_opposite_pairs_have_a_finite_loss():
    cosines, right = jnp.array([-1.0, 1.0]), jnp.array([True, False])
    np.testing.assert_allclose(binary_cross_entropy(cosines, right), -np.log(EDGE), rtol=1e-5)


def test_others_are_drawn_evenly_and_never_oneself():
    size, count = 5, 4000
    drawn = np.asarray(jax.jit(draw_others, static_argnums=1)(row_keys(size), count))
    for row in range(size):
        counts = np.bincount(drawn[row], minlength=size)
        assert counts[row] == 0
        assert np.delete(counts, row).min() > 0.9 * count / (size - 1)
    assert len(np.unique((drawn - np.arange(size)[:, None]) % size, axis=0)) == size  # each row its own
