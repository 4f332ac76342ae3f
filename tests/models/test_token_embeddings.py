"""Embeddings of tokens: which tokens have one, in every layout, family and sharing, and what `load` returns."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import TINY, gemma, padded, random_params, texts, tower
from tiny_bert import write_tiny_bert
from tiny_models import TEXTS, make_model, write_tiny_qwen3, write_tiny_t5

from endx_jax.batch import Packing, Tokens
from endx_jax.models.pooling import every_token
from endx_jax.models.token_embeddings import TokenChoice

LENGTHS = (3, 7, 5, 1)
TOKENS = padded(texts(LENGTHS), 8)
BY_TOKEN = {"pooling": "tokens", "projection": 4}
BERT = dataclasses.replace(TINY, layers=1)


def token_tower(choice=TokenChoice(), config=BERT):  # noqa: B008  # immutable
    return tower(config, projection=4, pooling=every_token, tokens=choice)


def apply(model, params, tokens):
    return jax.device_get(jax.jit(model.apply)({"params": params}, tokens))


@pytest.mark.parametrize("config", [BERT, gemma()], ids=["bert", "gemma"])
def test_each_token_has_the_unit_projection_of_its_encoding_also_packed(config):
    model = token_tower(config=config)
    params = random_params(model, TOKENS)

    @jax.jit
    def both(params):
        return [model.apply({"params": params}, TOKENS, method=method) for method in (None, model.encodings)]

    found, encodings = jax.device_get(both(params))
    expected = encodings @ params["projection"]["kernel"]
    expected /= np.linalg.norm(expected, axis=-1, keepdims=True)
    np.testing.assert_array_equal(found.mask, TOKENS.mask)
    np.testing.assert_allclose(found.values[found.mask], expected[found.mask], rtol=1e-5, atol=1e-6)
    packed = apply(model, params, dataclasses.replace(TOKENS, packing=Packing(16, ((2, 4), (2, 7)))))
    np.testing.assert_array_equal(packed.mask, TOKENS.mask)
    np.testing.assert_allclose(packed.values[packed.mask], found.values[found.mask], atol=1e-5)


def test_skipped_tokens_do_not_count():
    skipped = tuple(np.asarray(TOKENS.ids)[1, [0, 4]].tolist())
    model = token_tower(TokenChoice(skip=skipped))
    params = {"params": random_params(model, TOKENS)}
    mask = jax.jit(lambda: model.apply(params, TOKENS).mask)()  # without the values, of which nothing is compiled
    np.testing.assert_array_equal(mask, TOKENS.mask & ~np.isin(TOKENS.ids, skipped))


@pytest.mark.parametrize("attend", [True, False])
def test_questions_are_filled_up_with_embedded_tokens(attend):
    model = token_tower(TokenChoice(expand=6, fill=9, attend=attend))
    params = random_params(model, TOKENS)
    found = apply(model, params, dataclasses.replace(TOKENS, packing=Packing(16, ((2, 4), (2, 7)))))
    np.testing.assert_array_equal(found.mask.sum(1), [max(length, 6) for length in LENGTHS])
    filled = np.where(TOKENS.mask, TOKENS.ids, 9)[:1, :6]
    mask = jnp.ones((1, 6), bool) if attend else TOKENS.mask[:1, :6]
    alone = apply(token_tower(), params, Tokens(jnp.asarray(filled), mask))
    np.testing.assert_allclose(found.values[0, :6], alone.values[0], atol=1e-5)


def test_short_batches_are_widened_to_the_expansion():
    model = token_tower(TokenChoice(expand=12, fill=9))
    params = {"params": random_params(model, TOKENS)}
    assert jax.eval_shape(model.apply, params, TOKENS).values.shape == (4, 12, 4)


@pytest.mark.parametrize("write", [write_tiny_bert, write_tiny_t5, write_tiny_qwen3])
def test_a_model_returns_a_list_of_token_embeddings(write, tmp_path):
    model = make_model(write(tmp_path), **BY_TOKEN)
    found = model.encode_document(TEXTS)
    lengths = model.encoder.processors["answer"](TEXTS).lengths
    assert [each.shape for each in found] == [(length, 4) for length in lengths]
    assert model.width == 4
    for number, text in enumerate(TEXTS):
        np.testing.assert_allclose(model.encode_document(text), found[number], atol=1e-5)
    assert model.encode_query([]) == []


@pytest.mark.parametrize("settings", [{"sharing": "ade"}, {"sharing": "ade_spl"}, {"encoder": "gru"}])
def test_similarity_is_maxsim(tiny_bert, settings):
    model = make_model(tiny_bert, **BY_TOKEN, **settings)
    questions, documents = model.encode_query(TEXTS[:3]), model.encode_document(TEXTS)
    expected = [[(q @ d.T).max(axis=1).sum() for d in documents] for q in questions]
    np.testing.assert_allclose(model.similarity(questions, documents), expected, rtol=1e-5)
    np.testing.assert_allclose(model.similarity(questions[0], documents[1]), [[expected[0][1]]], rtol=1e-5)


def test_precisions_and_widths_are_those_of_each_token(tiny_bert):
    model = make_model(tiny_bert, **BY_TOKEN)
    whole, codes = model.encode_query(TEXTS), model.encode_query(TEXTS, precision="int8")
    for row, quantized in zip(whole, codes, strict=True):
        np.testing.assert_allclose(quantized.codes * quantized.scales[:, None], row, atol=0.005)
    assert model.encode_query(TEXTS, truncate_dim=2)[0].shape == (len(whole[0]), 2)


def test_tokens_of_settings_are_those_of_the_tokenizer(tiny_bert):
    settings = {"skip": ("cat", "[SEP]"), "expand": 16}
    model = make_model(tiny_bert, **BY_TOKEN, tokens=settings)
    tokenizer = model.encoder.processors["answer"].tokenizer
    towers = model.encoder.model
    assert towers.answer.tokens.skip == tokenizer.ids_of(settings["skip"], "skip")
    assert towers.question.tokens.fill == tokenizer.mask_id
    assert len(model.encode_query("x")) == 16
    assert len(model.encode_document("the cat")) == len(tokenizer(["the"], 24).ids) - 1
