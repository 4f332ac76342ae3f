"""Towers without an encoder, token weights, and mixtures of layers."""

import jax
import numpy as np
from helpers import ONE_LAYER, TINY, padded, random_params, texts, tower

from endx_jax.encoders.t5 import T5Config
from endx_jax.models.static import NoEncoder, StaticConfig, TokenWeights
from endx_jax.models.tower import TokenEmbedder, Tower
from endx_jax.models.transformer import TransformerEncoder

TOKENS = padded(texts((5, 2)), 6)


def test_without_an_encoder_an_embedding_is_the_weighted_mean_of_token_vectors():
    model = Tower(TokenEmbedder(TINY.vocab_size, 3), NoEncoder(), token_weights=TokenWeights(TINY.vocab_size))
    params = random_params(model, TOKENS)
    assert {group: next(iter(p.values())).shape for group, p in params.items()} == {
        "token_embedder": (50, 3),
        "token_weights": (50,),
    }
    table, weights = params["token_embedder"]["embedding"], params["token_weights"]["weight"]
    embeddings = jax.jit(model.apply)({"params": params}, TOKENS)
    for row, count, found in zip(np.asarray(TOKENS.ids), (5, 2), embeddings, strict=True):
        total = sum(weights[token] * table[token] for token in row[:count])
        np.testing.assert_allclose(found, total / np.linalg.norm(total), atol=1e-6)


def test_layers_are_mixed_before_they_are_pooled():
    model = tower(ONE_LAYER, layer_weights=(0.5, 0.2, 0.3), normalize=False)
    params = random_params(model, TOKENS)
    layers, found = jax.jit(
        lambda params: (
            model.apply({"params": params}, TOKENS, method=model.layers),
            model.apply({"params": params}, TOKENS),
        )
    )(params)
    assert [layer.shape for layer in layers] == [(2, 6, 16)] * 3
    np.testing.assert_array_equal(layers[0], params["token_embedder"]["embedding"][TOKENS.ids])
    assert (*model.encoder.outputs,) == ("encoder input", "layer 1")
    mixed = sum(weight * np.asarray(layer) for weight, layer in zip(model.layer_weights, layers, strict=True))
    expected = [mixed[0, :5].mean(0), mixed[1, :2].mean(0)]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_t5_gives_its_layers_without_the_token_table_twice():
    config = T5Config(vocab_size=50, width=8, layers=3, heads=2, head_width=4, mlp_width=8)
    encoder = TransformerEncoder(config)
    model = Tower(TokenEmbedder(50, 8), encoder)
    params = random_params(model, TOKENS)

    @jax.jit
    def both(params):
        return [model.apply({"params": params}, TOKENS, method=method) for method in (model.layers, model.encodings)]

    layers, last = both(params)
    assert len(layers) == 1 + len(encoder.outputs) == 4
    np.testing.assert_array_equal(layers[-1], last)


def test_the_config_of_static_vectors():
    for pad_id in (0, 6):
        found = StaticConfig.from_hugging_face({"vocab_size": 7, "hidden_size": 3, "pad_token_id": pad_id})
        assert (found.vocab_size, found.width, found.pad_id, found.positions) == (7, 3, pad_id, None)
