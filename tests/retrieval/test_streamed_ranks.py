import numpy as np
import pytest

from endx_jax import metrics
from endx_jax.retrieval import streamed_ranks as module
from endx_jax.retrieval.best import Tile
from endx_jax.retrieval.streamed_ranks import streamed_ranks

QUESTIONS, CANDIDATES, WIDTH = 20, 230, 6


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Two chunks of questions, four blocks of two tiles."""
    monkeypatch.setitem(module.TILES, "cpu", Tile(questions=16, candidates=32, merged=8))
    monkeypatch.setattr(module, "BLOCK", 64)


@pytest.fixture(scope="module")
def embeddings():
    """Small whole numbers, so that scores are exact and many are equal."""
    draw = np.random.default_rng(0)
    questions = draw.integers(-2, 3, (QUESTIONS, WIDTH)).astype(np.float32)
    candidates = draw.integers(-2, 3, (CANDIDATES, WIDTH)).astype(np.float32)
    positives = np.full((QUESTIONS, 3), -1, np.int32)
    for row in positives:
        count = draw.integers(1, 4)
        row[:count] = draw.choice(CANDIDATES, count, replace=False)
    positives[0, :2] = [0, CANDIDATES - 1]
    return questions, candidates, positives


def naive(scores, positives) -> list[list[float]]:
    found = []
    for row, right in zip(scores, positives, strict=True):
        right = right[right >= 0]
        wrong = np.delete(row, right)
        own = np.sort(row[right])[::-1]
        places = [n + (wrong > s).sum() + (wrong == s).sum() / 2 for n, s in enumerate(own, start=1)]
        found.append(places + [np.inf] * (positives.shape[1] - len(places)))
    return found


def test_as_a_naive_count_and_as_all_scores_at_once(embeddings):
    questions, candidates, positives = embeddings
    found = streamed_ranks(questions, positives, candidates)
    scores = questions @ candidates.T
    np.testing.assert_array_equal(found, naive(scores, positives))
    np.testing.assert_array_equal(found, metrics.ranks(scores, positives))
    assert (found[np.isfinite(found)] % 1 == 0.5).any()  # there are ties


def test_what_does_not_count_is_as_if_it_were_not_there(embeddings):
    questions, candidates, positives = embeddings
    where = np.random.default_rng(1).random(CANDIDATES) < 0.7
    where[positives[positives >= 0]] = True
    scores = np.where(where, questions @ candidates.T, -np.inf)
    found = streamed_ranks(questions, positives, candidates, where=where)
    np.testing.assert_array_equal(found, naive(scores, positives))
    assert (found < streamed_ranks(questions, positives, candidates)).any()


def test_codes_with_scales(embeddings):
    questions, candidates, positives = embeddings
    scales = np.random.default_rng(2).choice(np.float32([0.5, 1, 2]), CANDIDATES)
    found = streamed_ranks(questions, positives, candidates.astype(np.int8), scales=scales)
    np.testing.assert_array_equal(found, naive(questions @ (candidates * scales[:, None]).T, positives))


def test_equal_embeddings_tie_whatever_their_numbers_are(embeddings):
    draw = np.random.default_rng(3)
    questions, candidates = (draw.normal(size=(n, WIDTH)).astype(np.float32) for n in (QUESTIONS, CANDIDATES))
    candidates[200] = candidates[5]  # in another block, and in another place of it
    found = streamed_ranks(questions, np.full((QUESTIONS, 1), 5, np.int32), candidates)
    higher = (questions @ candidates.T > (questions @ candidates[5])[:, None] + 1e-5).sum(1)
    np.testing.assert_array_equal(found[:, 0], higher + 1.5)


def test_nan_never_improves_a_rank(embeddings):
    questions, candidates, positives = embeddings
    candidates = candidates.copy()
    candidates[[n for n in range(CANDIDATES) if n not in positives][:3]] = np.nan
    found = streamed_ranks(questions, positives, candidates)
    np.testing.assert_array_equal(found, metrics.ranks(questions @ candidates.T, positives))
