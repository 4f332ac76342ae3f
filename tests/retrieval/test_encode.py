import jax
import numpy as np
import pytest

from endx_jax import load
from endx_jax.parallel import MeshSettings, make_mesh
from endx_jax.retrieval.encode import TextEncoder

TEXTS = ["the cat sat", "", "a dog " * 30, "on the mat the cat sat on the dog", "cat"]


@pytest.fixture(scope="module")
def model(tiny_bert):
    return load(tiny_bert)


def one_by_one(model, texts):
    return np.stack([model.encoder(model.params, "question", [text])[0] for text in texts])


def test_order_is_kept_whatever_the_batch(model):
    expected = one_by_one(model, TEXTS)
    for batch_size in (8, 16):
        found = model.encoder(model.params, "question", TEXTS, batch_size=batch_size)
        np.testing.assert_allclose(found, expected, atol=1e-6)
    assert found.dtype == np.float32


def test_more_texts_than_a_batch(model):
    texts = TEXTS * 5
    found = model.encoder(model.params, "answer", texts, batch_size=8)
    np.testing.assert_allclose(found, np.tile(one_by_one(model, TEXTS), (5, 1)), atol=1e-6)


def test_no_texts_give_no_rows(model):
    assert len(model.encoder(model.params, "question", [])) == 0


def test_one_device_gives_what_eight_do(model):
    mesh = make_mesh(MeshSettings(), jax.devices()[:1])
    encoder = TextEncoder(model.encoder.model, model.encoder.preparations, mesh)
    params = jax.device_get(model.params)
    found = encoder(params, "question", TEXTS)
    np.testing.assert_allclose(found, model.encoder(model.params, "question", TEXTS), atol=1e-6)


def test_a_batch_size_that_does_not_divide_over_the_devices_is_rounded_up(model):
    found = model.encoder(model.params, "question", TEXTS, batch_size=3)
    np.testing.assert_allclose(found, one_by_one(model, TEXTS), atol=1e-6)
