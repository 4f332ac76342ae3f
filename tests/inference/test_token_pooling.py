"""Pooling of token vectors, beside the naive form and in folders of sentence-transformers."""

import numpy as np
import pytest
from late_folders import NATIVE, POOLING, write_json, write_multi_vector

import endx_jax
from endx_jax.cli.entry import run_verb
from endx_jax.data.batches.ragged import RaggedVectors
from endx_jax.data.sets.documents import Document
from endx_jax.inference.token_pooling import pool_tokens
from endx_jax.models.token_embeddings import TokenPooling
from endx_jax.numerics import dequantize, unit_rows
from endx_jax.serving.service import Service

TEXTS = ["the cat sat on the mat. who is in the mat? a dog", "a dog, where?", "", "the mat " * 60]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_multi_vector(tmp_path_factory.mktemp("late") / "model")


@pytest.fixture(scope="module")
def model(folder):
    return endx_jax.load(folder)


def naive(vectors, factor):
    """Merges the two groups whose merger adds most little, by the recurrence of Lance and Williams, one by one."""
    groups = [[n] for n in range(len(vectors))]
    squares = (1 - vectors.astype(np.float64) @ vectors.T.astype(np.float64)).clip(0) ** 2
    while len(groups) > max(1, len(vectors) // factor):
        np.fill_diagonal(squares, np.inf)
        i, j = sorted(np.unravel_index(squares.argmin(), squares.shape))
        sizes = np.array([len(group) for group in groups])
        a, b = sizes[i], sizes[j]
        merged = ((sizes + a) * squares[i] + (sizes + b) * squares[j] - sizes * squares[i, j]) / (sizes + a + b)
        squares[i], squares[:, i] = merged, merged
        squares = np.delete(np.delete(squares, j, 0), j, 1)
        groups[i] += groups.pop(j)
    return np.array([vectors[group].mean(axis=0) for group in groups])


@pytest.mark.parametrize("factor", [2, 3, 9])
def test_groups_of_similar_vectors_become_their_means(factor):
    random = np.random.default_rng(factor)
    vectors = unit_rows(random.normal(size=(31, 6)).astype(np.float32))
    found = pool_tokens(vectors, TokenPooling(factor, protected=1, normalize=False))
    expected = naive(vectors[1:], factor)
    np.testing.assert_array_equal(found[0], vectors[0])
    order, right = (np.lexsort(rows.T) for rows in (found[1:], expected))
    np.testing.assert_allclose(found[1:][order], expected[right], atol=1e-6)
    unit = pool_tokens(vectors, TokenPooling(factor))
    np.testing.assert_allclose(unit, unit_rows(found), atol=1e-6)


def test_documents_keep_a_part_of_their_vectors_and_questions_all(model):
    whole, half = model.encode_document(TEXTS), model.encode_document(TEXTS, pool_factor=2)
    assert [len(each) for each in half] == [1 + max(1, (len(each) - 1) // 2) for each in whole]
    for each in half:
        np.testing.assert_allclose(np.linalg.norm(each, axis=1), 1, rtol=1e-5)
    np.testing.assert_array_equal(half[0][0], whole[0][0])
    codes = model.encode_document(TEXTS, pool_factor=2, precision="int8")
    np.testing.assert_allclose(dequantize(codes[3]), half[3], atol=0.01)


def test_a_folder_with_pooling_gives_pooled_documents(model, tmp_path):
    folder = write_multi_vector(tmp_path, modules=NATIVE | {"4_Pooling": POOLING})
    stated = {"pool_factor": 3, "num_protected_tokens": 2, "normalize_embeddings": True, "tasks": ["document"]}
    write_json(folder / "4_Pooling" / "config.json", stated)
    pooled = endx_jax.load(folder)
    assert pooled.token_pooling == TokenPooling(3.0, 2, True)
    expected = [pool_tokens(each, pooled.token_pooling) for each in model.encode_document(TEXTS)]
    for found in (pooled.encode_document(TEXTS), list(pooled.ranked("answer", TEXTS))):
        for each, right in zip(found, expected, strict=True):
            np.testing.assert_allclose(each, right, atol=1e-6)
    np.testing.assert_allclose(pooled.encode_query(TEXTS[0]), model.encode_query(TEXTS[0]), atol=1e-6)
    write_json(folder / "4_Pooling" / "config.json", stated | {"pool_factor": 1})
    assert endx_jax.load(folder).token_pooling == TokenPooling(1.0, 2, True)  # pools nothing


def test_an_index_keeps_the_factor_by_which_its_documents_are_pooled(folder, model, tmp_path, capsys):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join([TEXTS[0], TEXTS[1], TEXTS[3]]))
    verb = ["encode", f"--model={folder}", f"--corpus={corpus}", f"--output={tmp_path / 'index.sqlite'}"]
    assert run_verb([*verb, "--pool-factor=2"]) == 0
    index = endx_jax.open_index(tmp_path / "index.sqlite")
    index.add([Document("new", TEXTS[0])])
    service = Service(index.encoder.model, index)
    service.add([Document("served", TEXTS[0])], RaggedVectors.of(model.encode_document(TEXTS[:1])))
    rows, expected = index.snapshot.rows.tolist(), model.encode_document(TEXTS[0], pool_factor=2)
    stored = index.snapshot.store.token_vectors(rows)
    for row in (rows[0], *rows[3:]):
        np.testing.assert_allclose(dequantize(stored[row]), expected, atol=0.01)
    assert run_verb([*verb, "--pool-factor=3"]) == 2
    assert "pool_factor 2.0, not 3.0" in capsys.readouterr().err


@pytest.mark.reference
@pytest.mark.parametrize("factor", [1.5, 2, 4])
def test_pooled_vectors_are_those_of_sentence_transformers(factor):
    torch = pytest.importorskip("torch")
    from sentence_transformers.multi_vector_encoder.modules import HierarchicalTokenPooling

    vectors = unit_rows(np.random.default_rng(1).normal(size=(57, 16)).astype(np.float32))
    for protected, normalize in ((0, True), (1, False), (3, True)):
        theirs = HierarchicalTokenPooling(factor, num_protected_tokens=protected, normalize_embeddings=normalize)
        (expected,) = theirs.pool([torch.from_numpy(vectors)])
        found = pool_tokens(vectors, TokenPooling(factor, protected, normalize))
        np.testing.assert_allclose(found, expected.numpy(), atol=1e-6)
