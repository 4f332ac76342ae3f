import tracemalloc

import jax
import numpy as np
import pytest
from refusals import check_refusal

from endx_jax.numerics import Quantized, dequantize, quantize, signs
from endx_jax.ranking import binary
from endx_jax.ranking.binary import BinaryCorpus
from endx_jax.ranking.search import Corpus, top_k
from endx_jax.ranking.tiles import sign_products


def drawn(count, width=40, seed=0):
    rows = np.random.default_rng(seed).standard_normal((count, width)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def corpus_of(candidates, **options) -> BinaryCorpus:
    codes, scales = quantize(candidates, np)
    return BinaryCorpus(signs(codes), codes, scales, **options)


@pytest.mark.parametrize("width", [1, 8, 32, 40, 384])  # a part of a word, whole ones, and both
def test_products_of_signs_are_those_of_rounded_questions(width):
    questions, candidates = drawn(5, width, 1), drawn(70, width)
    questions[3] = 0
    largest = abs(questions).max(axis=1, keepdims=True)
    levels = 2 * np.round((questions / np.where(largest > 0, largest, 1) + 1) * 7.5) - 15
    expected = levels @ np.where(candidates > 0, 1, -1).T - 15 * width
    np.testing.assert_array_equal(jax.jit(sign_products)(questions, signs(candidates)), expected)


def test_few_candidates_are_all_ranked_by_their_codes_with_ties_by_row():
    candidates = np.resize(drawn(100), (200, 40))
    questions, corpus, twin = drawn(9, seed=1), corpus_of(candidates), quantize(candidates, np)
    found, exact = corpus.search(questions, 20), top_k(questions, twin.codes, 20, scales=twin.scales)
    np.testing.assert_array_equal(found.rows, exact.rows)
    np.testing.assert_allclose(found.scores, exact.scores, rtol=1e-5)
    where = np.arange(200) % 3 == 0
    np.testing.assert_array_equal(
        corpus.search(questions, 20, where).rows, top_k(questions, twin.codes, 20, scales=twin.scales, where=where).rows
    )
    np.testing.assert_array_equal(corpus.scores(questions)(2, 5), Corpus(*twin).scores(questions)(2, 5))
    assert corpus.search(questions, 500).rows.shape == (9, 200)
    assert corpus.search(questions[:0], 5).rows.shape == (0, 5)
    questions[4] = np.nan
    check_refusal(lambda: corpus.search(questions, 3), "question 4", "nan or infinity")


def test_most_of_the_best_are_found_among_many():
    questions, candidates = drawn(50, 128, 1), drawn(5000, 128)
    exact = top_k(questions, candidates, 10).rows
    for find, least in ((corpus_of(candidates).search, 0.9), (Corpus(signs(candidates)).search, 0.2)):
        recall = np.mean([len({*a} & {*b}) / 10 for a, b in zip(find(questions, 10).rows, exact, strict=True)])
        assert least < recall < least + 0.1


def test_memory_holds_the_candidates_of_a_block_of_questions(monkeypatch):
    corpus, questions = corpus_of(drawn(700)), drawn(2000, seed=1)
    expected = corpus.search(questions, 3)
    monkeypatch.setattr(binary, "QUESTIONS", 64)
    corpus.search(questions[:64], 3)  # compiles
    tracemalloc.start()
    found = corpus.search(questions, 3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * len(questions) * binary.FEWEST  # bytes of their scores
    np.testing.assert_array_equal(found, expected)
    questions[70] = np.nan
    check_refusal(lambda: corpus.search(questions, 3), "question 70", "nan or infinity")


def test_a_grown_corpus_is_searched_as_a_new_one():
    candidates, questions = drawn(900), drawn(4, seed=1)
    grown = corpus_of(candidates, before=corpus_of(candidates[:700]))
    for found, expected in zip(grown.search(questions, 9), corpus_of(candidates).search(questions, 9), strict=True):
        np.testing.assert_array_equal(found, expected)
    rounded = dequantize(Quantized(*quantize(candidates, np)))
    np.testing.assert_array_equal(grown.search(questions, 9).rows[:, 0], (questions @ rounded.T).argmax(axis=1))
