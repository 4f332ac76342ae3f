import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from endx_jax import metrics
from endx_jax.ranking.evaluate import default_block, evaluate_scores

RECALL = ["recall@1", "recall@2", "recall@5", "recall@10", "recall@20", "recall@50", "recall@100"]
NAMES = ["mrr", "mrr@10", "p@1", *RECALL, "avg_recall", "hit@1", "hit@5", "hit@10", "ndcg@10", "map"]


def draw(questions=50, candidates=130, levels=25):
    rng = np.random.default_rng(3)
    scores = rng.integers(0, levels, (questions, candidates)).astype(np.float32)
    qrels = [sorted(rng.choice(candidates, 1 + q % 4, replace=False).tolist()) for q in range(questions)]
    return scores, qrels


def from_rows(scores):
    return lambda start, stop: scores[start:stop]


def padded(qrels):
    return np.array([[*right, *[-1] * (max(map(len, qrels)) - len(right))] for right in qrels], np.int32)


def test_values_by_hand():
    scores = np.array([[0.9, 0.1, 0.5], [0.2, 0.2, 0.2], [0.1, 0.3, 0.2]], np.float32)
    found = evaluate_scores(from_rows(scores), [[0], [1], [0, 2]], candidates=3, depth=2)
    assert found.ranks.tolist() == [[1, np.inf], [2, np.inf], [2, 3]]
    assert found.metrics["mrr"] == pytest.approx((1 + 1 / 2 + 1 / 2) / 3)
    assert found.metrics["recall@1"] == pytest.approx((1 + 0 + 0) / 3)
    assert found.metrics["map"] == pytest.approx((1 + 1 / 2 + (1 / 2 + 2 / 3) / 2) / 3)
    assert found.top_ids.tolist() == [[0, 2], [0, 1], [1, 2]]  # of equal scores the lower index first
    np.testing.assert_array_equal(found.top_scores, np.float32([[0.9, 0.5], [0.2, 0.2], [0.3, 0.2]]))
    assert (found.questions, found.candidates) == (3, 3)


@jax.jit
def expected_of(scores, right):
    """Ranks and means of measures over all questions at once."""
    ranks = metrics.ranks(scores, right)
    values = {f"recall@{n}": metrics.recall_at(ranks, n) for n in (1, 2, 5, 10, 20, 50, 100)}
    values |= {f"hit@{n}": metrics.hit_at(ranks, n) for n in (1, 5, 10)}
    values |= {"mrr@10": metrics.reciprocal_rank(ranks, 10), "ndcg@10": metrics.ndcg_at(ranks, 10)}
    return ranks, jax.tree.map(jnp.mean, values)


@pytest.mark.parametrize("block", [7, 1024])  # the last one of 7 has a single question
def test_streaming_equals_one_pass_over_everything(block):
    (scores, qrels), asked = draw(), []

    def score_block(start, stop):
        asked.append((start, stop))
        return jnp.asarray(scores[start:stop])

    found = evaluate_scores(score_block, qrels, candidates=130, block=block)
    assert asked == [(start, min(start + block, 50)) for start in range(0, 50, block)]
    assert list(found.metrics) == NAMES
    ranks, expected = expected_of(scores, padded(qrels))
    np.testing.assert_array_equal(found.ranks, ranks)
    assert {name: found.metrics[name] for name in expected} == pytest.approx(jax.tree.map(float, expected))
    means = np.mean([found.metrics[f"recall@{n}"] for n in (1, 2, 5, 10, 20, 50)])
    assert found.metrics["avg_recall"] == pytest.approx(means, abs=1e-6)
    assert found.metrics["p@1"] == found.metrics["hit@1"]
    best = np.argsort(-scores, axis=1, kind="stable")[:, :100]
    np.testing.assert_array_equal(found.top_ids, best)
    np.testing.assert_array_equal(found.top_scores, np.take_along_axis(scores, best, axis=1))
    assert found.top_ids.dtype == np.int32


@pytest.mark.parametrize(("candidates", "block"), [(1, 1024), (2**14, 1024), (2**14 + 1, 512), (10**9, 16)])
def test_default_block_keeps_scores_within_64_megabytes(candidates, block):
    assert default_block(candidates) == block


def test_per_question_rows_are_json_and_average_to_the_metrics():
    scores, qrels = draw(candidates=90)
    found = evaluate_scores(from_rows(scores), qrels, candidates=90)
    assert found.top_ids.shape == (50, 90)  # the depth is cut to the pool
    rows = [json.loads(json.dumps(row, allow_nan=False)) for row in found.per_question()]
    assert [row["question"] for row in rows] == list(range(50))
    assert [len(row["ranks"]) for row in rows] == [len(right) for right in qrels]
    for name in NAMES:
        assert sum(row[name] for row in rows) / 50 == pytest.approx(found.metrics[name])
