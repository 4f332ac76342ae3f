import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import rankdata

from endx_jax.metrics import ranks

INF = np.inf


def twin(scores, positives):
    """Ranks each right candidate among itself and the wrong ones by sorting, then adds the right ones before it."""
    result = np.full(positives.shape, INF, np.float32)
    for row, padded in enumerate(positives):
        right = padded[padded >= 0]
        wrong = np.delete(scores[row], right)
        best_first = sorted(scores[row, right], reverse=True)
        for i, own in enumerate(best_first):
            result[row, i] = i + rankdata(-np.append(wrong, own), "average")[-1]
    return result


def draw(seed, *, questions=24, candidates=61, width=7, levels=9):
    """Scores on few levels, so that most are tied, and from 0 to `width` right candidates a question."""
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, levels, (questions, candidates)).astype(np.float32)
    positives = np.full((questions, width), -1, np.int32)
    for row in range(questions):
        count = row % (width + 1)
        positives[row, :count] = rng.choice(candidates, count, replace=False)
    return scores, positives


@pytest.mark.parametrize("levels", [1, 2, 9, 1000])
@pytest.mark.parametrize("seed", range(3))
def test_equals_the_sorting_twin(seed, levels):
    scores, positives = draw(seed, levels=levels)
    np.testing.assert_array_equal(ranks(scores, positives), twin(scores, positives))


def test_ties_and_padding_by_hand():
    assert ranks(jnp.zeros((1, 9)), jnp.array([[4]])).tolist() == [[(9 + 1) / 2]]
    scores = jnp.array([[3.0, 3.0, 3.0, 1.0, 0.0]])
    assert ranks(scores, jnp.array([[0, 1, 2]])).tolist() == [[1, 2, 3]]
    # With candidate 2 wrong, each of the other two shares its place with it: 1 + 1/2 and 2 + 1/2.
    assert ranks(scores, jnp.array([[0, 1, -1]])).tolist() == [[1.5, 2.5, INF]]
    # The last candidate is wrong, tied with the right one, and must be counted.
    for dtype in (jnp.float32, jnp.int32):
        assert ranks(jnp.array([[1, 0, 1]], dtype), jnp.array([[0, -1]])).tolist() == [[1.5, INF]]


def test_infinite_scores_are_ordinary_and_nan_counts_against_the_right_candidate():
    scores = jnp.array([[-INF, INF, -INF, 0.0]])
    assert ranks(scores, jnp.array([[0, 1]])).tolist() == [[1, 3.5]]
    nan = np.nan
    positives = jnp.array([[0, -1]])
    assert ranks(jnp.array([[nan, 1.0, -INF]]), positives).tolist() == [[3, INF]]
    assert ranks(jnp.array([[2.0, nan, 1.0]]), positives).tolist() == [[2, INF]]
    assert ranks(jnp.full((1, 3), nan), positives).tolist() == [[3, INF]]
    assert ranks(jnp.array([[nan, 2.0, 1.0]]), jnp.array([[0, 1]])).tolist() == [[1, 3]]


def test_bfloat16_scores_are_compared_as_they_are():
    scores, positives = draw(1, levels=200)
    coarse = jnp.asarray(scores / 7, jnp.bfloat16)
    np.testing.assert_array_equal(ranks(coarse, positives), twin(np.asarray(coarse, np.float32), positives))


def test_memory_does_not_grow_with_judgements_times_candidates():
    b, n, p = 32, 4096, 256
    shapes = jax.ShapeDtypeStruct((b, n), jnp.float32), jax.ShapeDtypeStruct((b, p), jnp.int32)
    temporaries = ranks.lower(*shapes).compile().memory_analysis().temp_size_in_bytes
    assert temporaries < 16 * (b * n + b * p)  # a byte for each [b, N, P] comparison would be 64 times b * n * 4
