import json

import jax
import numpy as np
import pytest

import endx_jax
from endx_jax.errors import EndxError
from endx_jax.numerics import dequantize


@pytest.fixture(scope="module")
def model(trained_workdir):
    return endx_jax.load(trained_workdir)


def test_a_workdir_gives_its_trained_towers(model, tiny_bert):
    trained, untrained = model.encode_query("the cat"), endx_jax.load(tiny_bert).encode_query("the cat")
    assert trained.shape == untrained.shape == (32,)
    assert np.abs(trained - untrained / np.linalg.norm(untrained)).max() > 1e-4


def test_a_workdir_s_model_is_the_one_that_its_index_was_made_with(model, trained_workdir):
    manifest = json.loads((trained_workdir / "index" / "manifest.json").read_text())
    assert manifest["model"]["identity"] == model.identity
    assert manifest["width"] == model.width == 32
    assert not model.asymmetric
    assert model.source.workdir == trained_workdir


def test_one_string_gives_one_vector_and_many_keep_their_order(model):
    texts = ["the cat sat on the mat", "", "dog 🙂", "who"]
    many = model.encode_document(texts, batch_size=2)
    assert many.shape == (4, 32)
    assert many.dtype == np.float32
    for text, embedding in zip(texts, many, strict=True):
        np.testing.assert_allclose(model.encode_document(text), embedding, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(many, axis=1), 1, atol=1e-6)


def test_truncated_embeddings_are_normalised_when_asked(model):
    whole = model.encode_query(["the cat", "a dog"])
    np.testing.assert_allclose(model.encode_query(["the cat", "a dog"], truncate_dim=8), whole[:, :8])
    short = model.encode_query(["the cat", "a dog"], truncate_dim=8, normalize_embeddings=True)
    np.testing.assert_allclose(short, whole[:, :8] / np.linalg.norm(whole[:, :8], axis=1, keepdims=True), rtol=1e-5)


def test_jax_arrays_on_request(model):
    assert isinstance(model.encode_query("the cat", convert_to_numpy=False), jax.Array)


def test_int8_codes_come_with_a_scale_a_text(model):
    texts = ["the cat sat on the mat", "a dog", "who"]
    exact, found = model.encode_document(texts), model.encode_document(texts, precision="int8")
    assert (found.codes.shape, found.codes.dtype, found.scales.shape) == ((3, 32), np.int8, (3,))
    np.testing.assert_allclose(dequantize(found), exact, atol=1 / 254)
    np.testing.assert_allclose(model.similarity(exact, found), model.similarity(exact, exact), atol=0.01)
    one = model.encode_document(texts[0], precision="int8", convert_to_numpy=False)
    assert (one.codes.shape, one.scales.shape) == ((32,), ())
    np.testing.assert_allclose(dequantize(one), exact[0], atol=1 / 254)


def test_similarity_is_the_cosine_of_every_pair(model):
    a, b = np.array([[3.0, 4.0], [1.0, 0.0]]), np.array([[3.0, 4.0]])
    np.testing.assert_allclose(model.similarity(a, b), [[1.0], [0.6]], rtol=1e-6)


def test_the_bundled_package_by_name(minilm):
    model = endx_jax.load(minilm)
    query = model.encode_query("How many people live in Berlin?")
    documents = model.encode_document(["Around 3.5 million people live in Berlin.", "Cats sleep for most of the day."])
    similarity = model.similarity(query, documents)[0]
    assert similarity[0] > 0.7 > 0.3 > similarity[1]


def test_a_name_that_nothing_has_is_refused_with_the_ways_out(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(EndxError, match="give a folder"):
        endx_jax.load("nobody/nothing")


def test_subpackages_are_there_without_importing_them():
    assert callable(endx_jax.losses.in_batch_softmax)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = endx_jax.nothing
