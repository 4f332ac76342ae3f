import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import one_line_error

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
    check(metrics.reciprocal_rank(RANKS, cutoff=2), [1, 0, 0])
    check(metrics.reciprocal_rank(RANKS, cutoff=1), [1, 0, 0])
    check(metrics.precision_at_1(RANKS), [1, 0, 0])
    check(metrics.hit_at(RANKS, 2), [1, 0, 0])
    check(metrics.hit_at(RANKS, 3), [1, 1, 0])
    check(metrics.precision_at_1(np.array([[1.5]])), [0])  # a tie at the top is not a top
    check(metrics.recall_at(RANKS, 1), [1 / 3, 0, 0])
    check(metrics.recall_at(RANKS, 5), [2 / 3, 1, 0])
    check(metrics.recall_at(RANKS, 100), [1, 1, 1])
    ideal = 1 / math.log2(2) + 1 / math.log2(3) + 1 / math.log2(4)
    check(metrics.ndcg_at(RANKS, 10), [(1 / math.log2(2) + 1 / math.log2(4)) / ideal, 1 / math.log2(3.5), 0])
    # At 2, the ideal ranking holds two of the three right candidates.
    check(metrics.ndcg_at(RANKS, 2), [1 / (1 / math.log2(2) + 1 / math.log2(3)), 0, 0])
    check(metrics.average_precision(RANKS), [(1 / 1 + 2 / 3 + 3 / 12) / 3, 1 / 2.5, 1 / 40])


def by_walking_down_the_list(order, right, n=10):
    """The textbook definitions, from a ranked list and a set."""
    places = [place for place, candidate in enumerate(order, 1) if candidate in right]
    gain = [1 / math.log2(1 + place) if candidate in right else 0 for place, candidate in enumerate(order, 1)]
    return {
        "mrr": 1 / places[0],
        "mrr@10": 1 / places[0] if places[0] <= 10 else 0,
        "p@1": float(order[0] in right),
        "recall@5": len(set(order[:5]) & right) / len(right),
        "hit@5": float(bool(set(order[:5]) & right)),
        "ndcg@10": sum(gain[:n]) / sum(1 / math.log2(1 + place) for place in range(1, min(n, len(right)) + 1)),
        "map": sum(len(set(order[:place]) & right) / place for place in places) / len(right),
    }


@pytest.mark.parametrize("count", [1, 12])
def test_measures_equal_the_textbook_definitions(count):
    rng = np.random.default_rng(count)
    scores = rng.permuted(np.tile(np.arange(40.0), (20, 1)), axis=1)
    positives = rng.permuted(np.tile(np.arange(40), (20, 1)), axis=1)[:, :count]
    ranks = metrics.ranks(scores, positives.astype(np.int32))
    rows = [
        by_walking_down_the_list(np.argsort(-row).tolist(), set(right.tolist()))
        for row, right in zip(scores, positives, strict=True)
    ]
    for name, measure in MEASURES.items():
        check(measure(ranks), [row[name] for row in rows])


@pytest.mark.parametrize("name", MEASURES)
def test_numpy_jax_and_jit_agree_and_padding_changes_nothing(name):
    measure = MEASURES[name]
    expected = measure(RANKS)
    np.testing.assert_array_equal(measure(jnp.asarray(RANKS)), expected)
    check(jax.jit(measure)(RANKS), expected)
    check(measure(np.pad(RANKS, ((0, 0), (0, 5)), constant_values=INF)), expected)


def test_a_question_without_right_candidates_has_no_share_to_find():
    nothing = np.full((1, 2), INF, np.float32)
    found = {name: float(measure(nothing)[0]) for name, measure in MEASURES.items()}
    shares = ("recall@5", "ndcg@10", "map")
    assert str(found) == str({name: float("nan") if name in shares else 0.0 for name in MEASURES})


@pytest.mark.parametrize("measure", [metrics.reciprocal_rank, metrics.recall_at, metrics.hit_at, metrics.ndcg_at])
def test_a_cutoff_that_keeps_nothing_is_refused(measure):
    with one_line_error("cutoff is 0; it must be greater than 0"):
        measure(RANKS, 0)
