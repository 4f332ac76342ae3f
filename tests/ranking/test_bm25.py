import logging
import math
from collections import Counter

import numpy as np
import pytest
from small_index import make_index

from endx_jax.data.sets.documents import Document
from endx_jax.data.sets.records import Pools, RetrievalSet
from endx_jax.index.index import Index
from endx_jax.index.lexical import Lexical
from endx_jax.ranking import bm25
from endx_jax.ranking.bm25 import BM25, WordTokenizer
from endx_jax.ranking.evaluate import evaluate_scores
from endx_jax.ranking.results import Results

# Stems written out by hand, so that the twin needs no stemmer: cats -> cat, chases, chased -> chase.
CANDIDATES = ["The cat chased the mouse", "Cats and dogs", "A mouse; a MOUSE; no house", "dogs chases", ""]
STEMS = [text.split() for text in ("the cat chase the mous", "cat and dog", "mous mous no hous", "dog chase", "")]
QUESTIONS = ["the cats", "Mouse mouse dog", "zebra", "?"]
QUESTION_STEMS = [["the", "cat"], ["mous", "mous", "dog"], ["zebra"], []]
TEXTS = ["the cat chased the mouse", "cats and dogs", "a mouse, a mouse", "dogs chase", "", "the end"]
ASKED = ["the cats", "mouse mouse dog", "zebra", ""]


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


def test_scores_equal_the_formula_and_unknown_words_rank_the_middle(capfd, caplog):
    scores = BM25.of_texts(CANDIDATES).scores(QUESTIONS)
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, [twin(STEMS, query) for query in QUESTION_STEMS], rtol=1e-5)
    # Negative control: the stop word "the" alone gives the first candidate its lead over the second.
    assert scores[0, 0] > scores[0, 1] > 0
    assert twin(STEMS, ["cat"])[0] < twin(STEMS, ["cat"])[1]
    with caplog.at_level(logging.DEBUG):
        BM25.of_texts(CANDIDATES).scores(QUESTIONS)
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []
    # No text has a word that counts for its length.
    scores = BM25.of_texts(["C#", "C++", "3.5"]).scores(["What is C++?"])
    np.testing.assert_allclose(scores, [[0, math.log(1 + 2.5 / 1.5) / (1 + 0.9 * (1 - 0.4)), 0]], rtol=1e-5)
    found = evaluate_scores(BM25.of_texts(CANDIDATES).score_block(["zebra", "?"]), [[0], [3]], candidates=5)
    assert found.ranks.tolist() == [[3], [3]]  # (5 + 1) / 2


def test_texts_are_counted_a_part_at_a_time_with_the_same_scores(monkeypatch):
    texts, sizes, words_of = ["", "?", *CANDIDATES], [], WordTokenizer.documents
    whole = BM25.of_texts(texts).scores(QUESTIONS)
    monkeypatch.setattr(WordTokenizer, "documents", lambda self, part: sizes.append(len(part)) or words_of(self, part))
    monkeypatch.setattr(bm25, "PART", 2)
    np.testing.assert_array_equal(BM25.of_texts(texts).scores(QUESTIONS), whole)
    assert sizes == [2, 2, 2, 1]


def test_few_scores_of_words_are_kept_for_later_questions(monkeypatch):
    index = BM25.of_texts(CANDIDATES)
    expected = index.scores(QUESTIONS)
    monkeypatch.setattr(bm25, "KEPT", 2 * len(CANDIDATES))
    few = BM25.of_texts(CANDIDATES)
    np.testing.assert_array_equal(few.scores(QUESTIONS), expected)
    assert len(index._known) > len(few._known) == 2


def test_scaled_scores_are_those_over_the_root_of_the_highest_possible_one():
    bm25, count = BM25.of_texts(CANDIDATES), len(STEMS)
    held = [[sum(word in document for document in STEMS) for word in query] for query in QUESTION_STEMS]
    highest = [sum(math.log(1 + (count - df + 0.5) / (df + 0.5)) for df in row) for row in held]
    assert any(0 in row for row in held)  # a word that no candidate holds counts too
    scaled = bm25.scaled_block(QUESTIONS)(0, len(QUESTIONS))
    np.testing.assert_allclose(scaled, bm25.scores(QUESTIONS) / np.sqrt(np.maximum(highest, 1e-6))[:, None], rtol=1e-5)
    assert scaled.max() > 0
    assert bm25.scaled_block(["?"])(0, 1).tolist() == [[0] * count]


def index_of(path, texts) -> Index:
    documents = [Document(str(n), text) for n, text in enumerate(texts)]
    return make_index(path, np.ones((len(texts), 2), np.float32), documents)


@pytest.fixture
def index(tmp_path) -> Index:
    return index_of(tmp_path / "index", TEXTS)


def expected(texts, rows, k):
    """What is above 0 of the scores of all texts that are there, sorted."""
    scores = BM25.of_texts(texts).scaled_block(ASKED)(0, len(ASKED))
    ranked = [sorted(zip(rows, line.tolist(), strict=True), key=lambda pair: -pair[1]) for line in scores]
    return [[(row, pytest.approx(score)) for row, score in line if score > 0][:k] for line in ranked]


@pytest.mark.parametrize("k", [1, 2, 10])
def test_ranks_as_bm25_over_the_documents(index, k):
    found = Lexical().rank(index.snapshot, ASKED, k)
    assert found == expected(TEXTS, range(6), k)
    assert (len(found[0]), found[2], found[3]) == (min(k, 3), [], [])


def test_follows_the_index_and_splits_each_text_once(index, monkeypatch):
    searching, split, words_of = Lexical(), [], WordTokenizer.documents
    noted = lambda self, texts: split.extend(texts) or words_of(self, texts)  # noqa: E731
    monkeypatch.setattr(WordTokenizer, "documents", noted)
    searching.rank(index.snapshot, ASKED, 10)
    index.add([Document("new", "the mouse ends")], np.ones((1, 2)))
    index.delete(["1"])
    kept = [0, 2, 3, 4, 5, 6]
    texts = [*TEXTS, "the mouse ends"]
    found, once = searching.rank(index.snapshot, ASKED, 10), [*split]
    assert found == expected([texts[row] for row in kept], kept, 10)
    assert once == [*TEXTS, "the mouse ends"]


def test_equal_scores_are_ordered_by_row_and_without_words_nothing_is_found(index, tmp_path):
    same = index_of(tmp_path / "same", ["same words" if n % 2 else "others" for n in range(40)])
    (found,) = Lexical().rank(same.snapshot, ["words"], 5)
    assert [row for row, _ in found] == [1, 3, 5, 7, 9]
    index.delete(["0", "1", "2", "3", "5"])
    assert Lexical().rank(index.snapshot, ASKED, 5) == [[], [], [], []]


def test_an_index_names_its_language_by_which_questions_are_split(tmp_path):
    german = ["Wie kann ich das Passwort ändern?", "Die Häuser der Stadt sind nicht für die Gäste."]
    index = index_of(tmp_path / "index", german)
    assert index.snapshot.info.language == "german"
    ((found,),) = Lexical().rank(index.snapshot, ["haus"], 5)
    assert found[0] == 1


def test_questions_without_words_of_the_pool_are_counted():
    records = RetrievalSet.from_pairs([("wie geht das", "how to do it"), ("do it", "so"), ("und wo", "here it is")])
    results = Results("data", "test", Pools(all=records))
    results.add_bm25()
    assert "2 of 3 questions share no word with any candidate" in results.tables()
    same = Results("data", "test", Pools(all=RetrievalSet.from_pairs([("to do", "how to do it"), ("wo", "here")])))
    same.add_bm25()
    assert "share no word" not in same.tables()
