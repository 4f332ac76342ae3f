"""Late interaction by `endx_jax.load`: folders of sentence-transformers' MultiVectorEncoder and of PyLate."""

import pathlib
import tracemalloc

import numpy as np
import pytest
from late_folders import FIXED, write_multi_vector, write_pylate

import endx_jax
from endx_jax.data.batches.ragged import RaggedVectors
from endx_jax.experiment.saved_model import load_pair_scorer
from endx_jax.ranking.mining import Similarities, SimilaritiesOfTexts, encoded

TEXTS = ["the cat sat on the mat.", "a dog, where?", "who is in the mat " * 20, "x"]


@pytest.mark.parametrize(("strategy", "lengths"), [("fixed", [12, 12, 12, 12]), ("min", [12, 12, 64, 12])])
def test_questions_are_expanded_and_listed_tokens_of_documents_skipped(strategy, lengths, tmp_path):
    folder = write_multi_vector(
        tmp_path, transformer={"query_expansion": FIXED | {"strategy": strategy}}, mask={"skiplist_words": [".", "cat"]}
    )
    model = endx_jax.load(str(folder))
    assert "one tower" in repr(model)
    assert [len(each) for each in model.encode_query(TEXTS)] == lengths
    document = model.encode_document(TEXTS[0])
    np.testing.assert_allclose(np.linalg.norm(document, axis=1), 1, rtol=1e-6)
    assert len(document) == model.encoder.processors["answer"](TEXTS[:1]).lengths[0] - 2


def test_it_reranks_by_maxsim_and_is_a_teacher(tmp_path):
    folder = str(write_multi_vector(tmp_path, mask={"skiplist_words": ["x"]}))
    model, pairs = endx_jax.load(folder), np.array([[0, 1], [1, 0], [0, 3], [0, 0], [2, 2]])
    scores = model.similarity(model.encode_query(TEXTS), model.encode_document(TEXTS))
    for embeddings in (False, True):
        score = load_pair_scorer(folder, embeddings=embeddings)(TEXTS, TEXTS)
        np.testing.assert_allclose(score(pairs), scores[tuple(pairs.T)], rtol=1e-5)


def test_a_document_without_tokens_scores_nothing():
    tokens = {"q": np.ones((2, 3), np.float32), "none": np.zeros((0, 3), np.float32), "d": np.eye(3, dtype=np.float32)}

    def encode(side, texts):
        return RaggedVectors.of([tokens[text] for text in texts])

    score = SimilaritiesOfTexts(encode, by_token=True)(["q"], ["none", "d"])
    assert score(np.array([[0, 0], [0, 1], [0, 0]])).tolist() == [0, 2, 0]
    assert score(np.array([[0, 0]])).tolist() == [0]


def test_token_vectors_are_copied_for_a_few_pairs_at_a_time():
    asked, texts = (np.random.default_rng(count).normal(size=(count, 64, 32)).astype(np.float32) for count in (99, 40))
    score = Similarities(encoded(RaggedVectors.of([*asked])), encoded(RaggedVectors.of([*texts])))
    pairs = np.random.default_rng(0).permutation(np.argwhere(np.ones((99, 40))))
    tracemalloc.start()
    scores = score(pairs)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * texts.nbytes  # 40 texts of one question, and not 3,960
    expected = np.einsum("qie,nje->qnij", asked, texts).max(axis=3).sum(axis=2)
    np.testing.assert_allclose(scores, expected[tuple(pairs.T)], rtol=1e-4)


OLD = {"model_type": None, "do_query_expansion": None, "similarity_fn_name": "cosine"}


@pytest.mark.parametrize("usage", [{}, OLD], ids=["1.6", "1.0"])
def test_a_folder_of_pylate_gives_its_embeddings_and_scores(usage, tmp_path):
    model = endx_jax.load(str(write_pylate(tmp_path, **usage)))
    # By PyLate 1.6.0: encode, and rank.rerank of one document at a time, since it scores padding as 0.
    stored = np.load(pathlib.Path(__file__).with_name("pylate.npz"))
    questions, documents = model.encode_query(TEXTS), model.encode_document(TEXTS)
    for name, found in (("question", questions), ("document", documents)):
        np.testing.assert_array_equal([len(each) for each in found], stored[f"{name}_lengths"])
        np.testing.assert_allclose(np.concatenate(found), stored[name], atol=1e-5)
    np.testing.assert_allclose(model.similarity(questions, documents), stored["scores"], atol=1e-5)
    without = endx_jax.load(str(write_pylate(tmp_path / "w", do_query_expansion=False)))
    assert len(without.encode_query("x")) == 4
