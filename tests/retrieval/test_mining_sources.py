import numpy as np
import pytest

from endx_jax.data.documents import Document
from endx_jax.data.records import RetrievalSet
from endx_jax.retrieval.index import Index, write_index
from endx_jax.retrieval.mining import Margin, MiningSettings, mine
from endx_jax.retrieval.mining_sources import InnerProducts, rank_by_bm25, rank_by_embeddings, rank_by_index
from endx_jax.retrieval.snapshot import Snapshot

WIDTH, QUESTIONS, CANDIDATES = 8, 12, 30


@pytest.fixture(scope="module")
def records():
    draw = np.random.default_rng(0)
    return RetrievalSet(
        questions=tuple(f"question {n}" for n in range(QUESTIONS)),
        candidates=tuple(f"text {n}" for n in range(CANDIDATES)),
        qrels=tuple((int(row),) for row in draw.integers(0, CANDIDATES, QUESTIONS)),
        question_ids=tuple(f"q{n}" for n in range(QUESTIONS)),
        candidate_ids=tuple(f"d{n}" for n in range(CANDIDATES)),
    )


def encode(side, texts):
    """A vector for each text, the same wherever the text stands."""
    seeds = [[side == "question", *text.encode()] for text in texts]
    return np.stack([np.random.default_rng(seed).normal(size=WIDTH) for seed in seeds]).astype(np.float32)


def index_of(folder, ids, texts):
    documents = [Document(name, text) for name, text in zip(ids, texts, strict=True)]
    write_index(folder, encode("answer", texts), documents, metric="inner product", model={})
    return Index(folder).snapshot


def test_embeddings_are_ranked_exactly(records):
    ranked = rank_by_embeddings(encode, records, CANDIDATES)
    scores = encode("question", records.questions) @ encode("answer", records.candidates).T
    assert ranked.rows.tolist() == np.argsort(-scores, axis=1).tolist()
    np.testing.assert_allclose(ranked.scores, -np.sort(-scores, axis=1), rtol=1e-4, atol=1e-5)
    right = [scores[question, row] for question, (row,) in enumerate(records.qrels)]
    np.testing.assert_allclose(ranked.lowest_right(), right, rtol=1e-5)


def test_an_index_of_the_same_candidates_gives_the_same_negatives(records, tmp_path):
    order = np.random.default_rng(1).permutation(CANDIDATES)
    texts = [records.candidates[n] for n in order]
    snapshot = index_of(tmp_path / "index", [f"other{n}" for n in order], texts)
    settings = MiningSettings(negatives=4, last_rank=9, margin=Margin(absolute=0.5))
    memory = mine(rank_by_embeddings(encode, records, CANDIDATES), records.qrels, records.candidates, settings)
    grown, ranked = rank_by_index(encode, snapshot, Snapshot.search, records, CANDIDATES)
    assert grown == records
    assert mine(ranked, records.qrels, records.candidates, settings) == memory
    assert memory.dropped["margin"] > 0
    assert any(memory.negatives)


def test_documents_that_only_the_index_has_are_candidates_too(records, tmp_path):
    texts = [*records.candidates[:27], "text 3", "a stranger", "another"]  # one text twice
    snapshot = index_of(tmp_path / "index", [f"d{n}" for n in range(29)] + ["x"], texts)
    grown, ranked = rank_by_index(encode, snapshot, Snapshot.search, records, CANDIDATES)
    assert grown.candidates == (*records.candidates, "a stranger", "another")
    assert grown.candidate_ids[-2:] == ("d28+", "x")  # d28 is another candidate's
    assert grown.qrels == records.qrels
    everything = [*range(27), 3, CANDIDATES, CANDIDATES + 1]
    assert sorted(ranked.rows[0].tolist()) == sorted(everything)
    mined = mine(ranked, grown.qrels, grown.candidates, MiningSettings(negatives=CANDIDATES))
    assert mined.dropped["equal text"] + sum(row == (3,) for row in records.qrels) == QUESTIONS


def test_neighbours_that_an_engine_did_not_find_stay_missing(records, tmp_path):
    snapshot = index_of(tmp_path / "index", records.candidate_ids, records.candidates)

    def search(snapshot, questions, k):
        found = snapshot.search(questions, k)
        return found._replace(rows=np.where(np.arange(k) < 2, found.rows, -1))

    _, ranked = rank_by_index(encode, snapshot, search, records, CANDIDATES)
    assert (ranked.rows >= 0).sum(axis=1).tolist() == [2] * QUESTIONS


def test_bm25_ranks_what_shares_a_word():
    records = RetrievalSet(
        questions=("cats sleeping", "zebra"),
        candidates=("dogs bark", "a cat sleeps", "the cat", "sleep", "zebras"),
        qrels=((1,), (0, 4)),
        question_ids=("q0", "q1"),
        candidate_ids=tuple("abcde"),
    )
    ranked = rank_by_bm25(records, 4)
    assert ranked.rows[0].tolist()[0] == 1
    assert set(ranked.rows[0].tolist()) == {1, 2, 3, -1}
    assert ranked.rows[1].tolist() == [4, -1, -1, -1]
    assert ranked.lowest_right().tolist() == [ranked.scores[0, 0], 0.0]
    assert rank_by_bm25(records, 100).rows.shape == (2, 5)


def test_a_text_is_encoded_once_and_only_when_it_is_asked_about():
    asked: list[str] = []

    def encode(side, texts):
        asked.extend(texts)
        return np.asarray([[float(text), 1.0] for text in texts], np.float32)

    score = InnerProducts.of_texts(encode, ["1", "2"], ["10", "20", "30"])
    assert score(np.asarray([[0, 2], [1, 2]])).tolist() == [31.0, 61.0]
    assert score(np.asarray([[1, 0], [1, 2], [0, 0]])).tolist() == [21.0, 61.0, 11.0]
    assert sorted(asked) == ["1", "10", "2", "30"]
