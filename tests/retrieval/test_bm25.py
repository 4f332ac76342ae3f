import logging
import math
import sys
from collections import Counter

import numpy as np
import pytest

from endx_jax.errors import EndxError
from endx_jax.retrieval.bm25 import BM25
from endx_jax.retrieval.evaluate import evaluate

# Stems written out by hand, so that the twin needs no stemmer: cats -> cat, chases, chased -> chase.
CANDIDATES = ["The cat chased the mouse", "Cats and dogs", "A mouse; a MOUSE; no house", "dogs chases", ""]
STEMS = [
    ["the", "cat", "chase", "the", "mous"],
    ["cat", "and", "dog"],
    ["mous", "mous", "no", "hous"],
    ["dog", "chase"],
    [],
]
QUESTIONS = ["the cats", "Mouse mouse dog", "zebra", "?"]
QUESTION_STEMS = [["the", "cat"], ["mous", "mous", "dog"], ["zebra"], []]


def twin(documents, query, k1=0.9, b=0.4):
    mean = sum(map(len, documents)) / len(documents)
    scores = []
    for document in documents:
        counts = Counter(document)
        score = 0.0
        for word in query:
            df = sum(word in other for other in documents)
            idf = math.log(1 + (len(documents) - df + 0.5) / (df + 0.5))
            score += idf * counts[word] / (counts[word] + k1 * (1 - b + b * len(document) / mean))
        scores.append(score)
    return scores


def test_scores_equal_the_formula():
    scores = BM25.of_texts(CANDIDATES).scores(QUESTIONS)
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, [twin(STEMS, query) for query in QUESTION_STEMS], rtol=1e-5)
    # Negative control: the stop word "the" alone gives the first candidate its lead over the second.
    assert scores[0, 0] > scores[0, 1] > 0
    assert twin(STEMS, ["cat"])[0] < twin(STEMS, ["cat"])[1]


def test_a_question_of_unknown_words_ranks_the_middle_of_the_pool():
    found = evaluate(BM25.of_texts(CANDIDATES).score_block(["zebra", "?"]), [[0], [3]], candidates=5)
    assert found.ranks.tolist() == [[3], [3]]  # (5 + 1) / 2


def test_blocks_are_slices_of_all_scores():
    index = BM25.of_texts(CANDIDATES)
    np.testing.assert_array_equal(index.score_block(QUESTIONS)(1, 3), index.scores(QUESTIONS)[1:3])


def test_nothing_is_printed_or_logged(capfd, caplog):
    with caplog.at_level(logging.DEBUG):
        BM25.of_texts(CANDIDATES).scores(QUESTIONS)
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []


@pytest.mark.parametrize("candidates", [[], ["", "? !"]])
def test_a_pool_without_words_is_refused(candidates):
    with pytest.raises(EndxError, match=f"no word in any of the {len(candidates)} candidates"):
        BM25.of_texts(candidates)


@pytest.mark.parametrize("package", ["bm25s", "Stemmer"])
def test_a_missing_package_is_named(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(EndxError, match=f"BM25 needs the package {package}: pip install bm25s PyStemmer"):
        BM25.of_texts(CANDIDATES)
