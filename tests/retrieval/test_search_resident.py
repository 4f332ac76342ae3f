import numpy as np
import pytest
from helpers import one_line_error

from endx_jax.retrieval import search
from endx_jax.retrieval.search import Resident, Tile, merge_block


def whole_numbers(*shape, seed=0):
    """Embeddings of few distinct values, so that most scores are shared by many candidates."""
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(np.float32)


@pytest.fixture
def small(monkeypatch):
    """Blocks of at most 128 rows, 16 a device: each corpus takes several."""
    monkeypatch.setattr(search, "TILES", {"cpu": Tile(questions=16, candidates=2, merged=3)})
    monkeypatch.setattr(search, "BLOCK", 128)


def check(corpus, candidates, where, k=7):
    """Rows and scores are those of sorting all scores of what is there; these are whole numbers, so exact."""
    for asked in (1, 9, 40):
        questions = whole_numbers(asked, 3, seed=asked)
        scores = np.where(where, questions @ candidates.T, -np.inf)
        rows = np.argsort(-scores, axis=1, kind="stable")[:, : min(k, where.sum())]
        found = corpus.search(questions, k)
        np.testing.assert_array_equal(found.rows, rows)
        np.testing.assert_array_equal(found.scores, np.take_along_axis(scores, rows, axis=1))


@pytest.mark.parametrize("count", [1, 129, 400])
def test_finds_what_sorting_all_scores_finds(small, count):
    candidates, where = whole_numbers(count, 3, seed=1), np.arange(count) % 3 != 1
    check(Resident(candidates, None, where), candidates, where)


def test_codes_with_scales(small):
    codes, scales = whole_numbers(300, 3, seed=1).astype(np.int8), np.float32([1, 2, 4] * 100)
    there = np.ones(300, bool)
    check(Resident(codes, scales, there), codes * scales[:, None], there)


def test_unchanged_blocks_are_not_sent_again(small, monkeypatch):
    sent = []
    send = search.send
    monkeypatch.setattr(search, "send", lambda rows, *rest: sent.append(rows.start) or send(rows, *rest))
    candidates = whole_numbers(400, 3, seed=1)
    before = Resident(candidates[:300], None, np.ones(300, bool))
    where = np.arange(400) != 5
    after = Resident(candidates, None, where, before)
    # Of the blocks 0, 128 and 256 the last was not full.
    assert sent == [0, 128, 256, *(256, 384)]
    check(after, candidates, where)
    check(before, candidates[:300], np.ones(300, bool))
    del sent[:]
    check(Resident(candidates, None, ~where, after), candidates, ~where)
    assert sent == []


def test_few_programs_are_compiled(small):
    candidates, compiled = whole_numbers(110, 3), merge_block._cache_size()
    for count in range(100, 111):
        corpus = Resident(candidates[:count], None, np.ones(count, bool))
        for asked in (1, 5, 6, 8):
            for k in (1, 5, 16):
                corpus.search(whole_numbers(asked, 3), k)
    # One size of block, 1 question or 8, and 16 kept.
    assert merge_block._cache_size() - compiled == 2


def test_an_empty_search_returns_empty_arrays(small):
    corpus = Resident(whole_numbers(6, 3), None, np.zeros(6, bool))
    assert corpus.search(whole_numbers(4, 3), 5).rows.shape == (4, 0)
    assert Resident(whole_numbers(6, 3), None, np.ones(6, bool)).search(np.zeros((0, 3)), 5).rows.shape == (0, 5)


def test_mistakes(small):
    corpus = Resident(whole_numbers(6, 3), None, np.ones(6, bool))
    with one_line_error(r"\(4, 2\) and candidate embeddings \(6, 3\)"):
        corpus.search(np.ones((4, 2)), 5)
    with one_line_error("k 0"):
        corpus.search(np.ones((4, 3)), 0)
    with one_line_error("scores of question 1 contain nan"):
        corpus.search(np.float32([[1, 1, 1], [np.nan, 1, 1]]), 5)


def test_a_corpus_that_is_larger_than_memory_does_not_fit():
    assert search.fits(1)
    assert not search.fits(1 << 60)
