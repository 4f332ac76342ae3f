import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from endx_jax import metrics

INF = np.inf
# Three right candidates at 1, 3 and 12; one at the tied place 2.5; one far down.
RANKS = np.array([[1, 3, 12], [2.5, INF, INF], [40, INF, INF]], np.float32)

MEASURES = {
    "mrr": metrics.reciprocal_rank,
    "mrr@10": lambda r: metrics.reciprocal_rank(r, cutoff=10),
    "p@1": metrics.precision_at_1,
    "recall@5": lambda r: metrics.recall_at(r, 5),
    "hit@5": lambda r: metrics.hit_at(r, 5),
    "ndcg@10": metrics.ndcg_at,
    "map": metrics.average_precision,
}


def check(values, expected):
    np.testing.assert_allclose(values, expected, rtol=1e-6)


def test_measures_by_hand():
    check(metrics.reciprocal_rank(RANKS), [1, 1 / 2.5, 1 / 40])
    check(metrics.reciprocal_rank(RANKS, cutoff=10), [1, 1 / 2.5, 0])
    check(metrics.reciprocal_rank(RANKS, cutoff=1), [1, 0, 0])
    check(metrics.precision_at_1(RANKS), [1, 0, 0])
    check(metrics.hit_at(RANKS, 2), [1, 0, 0])
    check(metrics.hit_at(RANKS, 3), [1, 1, 0])
    check(metrics.precision_at_1(np.array([[1.5]])), [0])  # a tie at the top is not a top
    check(metrics.recall_at(RANKS, 1), [1 / 3, 0, 0])
    check(metrics.recall_at(RANKS, 5), [2 / 3, 1, 0])
    check(metrics.recall_at(RANKS, 100), [1, 1, 1])
    ideal = 1 / math.log2(2) + 1 / math.log2(3) + 1 / math.log2(4)
    check(metrics.ndcg_at(RANKS), [(1 / math.log2(2) + 1 / math.log2(4)) / ideal, 1 / math.log2(3.5), 0])
    # At 2, the ideal ranking holds two of the three right candidates.
    check(metrics.ndcg_at(RANKS, 2), [1 / (1 / math.log2(2) + 1 / math.log2(3)), 0, 0])
    check(metrics.average_precision(RANKS), [(1 / 1 + 2 / 3 + 3 / 12) / 3, 1 / 2.5, 1 / 40])


@pytest.mark.parametrize("name", MEASURES)
def test_numpy_jax_and_jit_agree_and_padding_changes_nothing(name):
    measure = MEASURES[name]
    expected = measure(RANKS)
    np.testing.assert_array_equal(measure(jnp.asarray(RANKS)), expected)
    check(jax.jit(measure)(RANKS), expected)
    check(measure(np.pad(RANKS, ((0, 0), (0, 5)), constant_values=INF)), expected)


@pytest.mark.parametrize("width", [0, 2])
def test_a_question_without_right_candidates_has_no_share_to_find(width):
    nothing = metrics.ranks(jnp.ones((1, 3)), jnp.full((1, width), -1))
    assert nothing.tolist() == [[INF] * width]
    assert metrics.ranked_gains(nothing, nothing).shape == (1, width)
    found = {name: float(measure(nothing)[0]) for name, measure in MEASURES.items()}
    shares = ("recall@5", "ndcg@10", "map")
    assert str(found) == str({name: float("nan") if name in shares else 0.0 for name in MEASURES})
