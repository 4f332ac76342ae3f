import math

import chex
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
IDEAL = [1 / math.log2(1 + rank) for rank in (1, 2, 3)]
BY_HAND = [
    (MEASURES["mrr"], [1, 1 / 2.5, 1 / 40]),
    (MEASURES["mrr@10"], [1, 1 / 2.5, 0]),
    (lambda r: metrics.reciprocal_rank(r, cutoff=1), [1, 0, 0]),
    (MEASURES["p@1"], [1, 0, 0]),
    (lambda r: metrics.precision_at_1(r + 0.5), [0, 0, 0]),  # a tie at the top is not a top
    (lambda r: metrics.hit_at(r, 2), [1, 0, 0]),
    (lambda r: metrics.hit_at(r, 3), [1, 1, 0]),
    (lambda r: metrics.recall_at(r, 1), [1 / 3, 0, 0]),
    (MEASURES["recall@5"], [2 / 3, 1, 0]),
    (lambda r: metrics.recall_at(r, 100), [1, 1, 1]),
    (MEASURES["ndcg@10"], [(1 / math.log2(2) + 1 / math.log2(4)) / sum(IDEAL), 1 / math.log2(3.5), 0]),
    (lambda r: metrics.ndcg_at(r, 2), [1 / sum(IDEAL[:2]), 0, 0]),  # the ideal ranking holds two of the three
    (MEASURES["map"], [(1 / 1 + 2 / 3 + 3 / 12) / 3, 1 / 2.5, 1 / 40]),
]


def test_measures_by_hand():
    found = jax.jit(lambda ranks: [measure(ranks) for measure, _ in BY_HAND])(RANKS)
    np.testing.assert_allclose(found, [expected for _, expected in BY_HAND], rtol=1e-6)


def measured(ranks):
    return {name: measure(ranks) for name, measure in MEASURES.items()}


def test_numpy_jax_and_jit_agree_and_padding_changes_nothing():
    expected, compiled = measured(RANKS), jax.jit(measured)
    chex.assert_trees_all_equal(measured(jnp.asarray(RANKS)), expected)
    for ranks in (RANKS, np.pad(RANKS, ((0, 0), (0, 5)), constant_values=INF)):
        chex.assert_trees_all_close(compiled(ranks), expected, rtol=1e-6)


@pytest.mark.parametrize("width", [0, 2])
def test_a_question_without_right_candidates_has_no_share_to_find(width):
    nothing = metrics.ranks(np.ones((1, 3), np.float32), np.full((1, width), -1, np.int32))
    assert nothing.tolist() == [[INF] * width]
    assert metrics.ranked_gains(nothing, nothing).shape == (1, width)
    found = {name: float(value[0]) for name, value in jax.jit(measured)(nothing).items()}
    shares = ("recall@5", "ndcg@10", "map")
    assert str(found) == str({name: float("nan") if name in shares else 0.0 for name in sorted(MEASURES)})
