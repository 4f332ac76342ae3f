"""From settings and a pretrained folder to a dual encoder with its parameters."""

import warnings

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import initial_params, padded, texts
from tiny_bert import WIDTH, write_tiny_bert

from endx_jax import pretrained
from endx_jax.models import SIDES, MultiHopAttention, RecurrentConfig, TransformerEncoder
from endx_jax.models.pooling import first, mean
from endx_jax.pretrained.sentence_transformers import Head
from endx_jax.pretrained.settings import ModelSettings
from endx_jax.pretrained.towers import build_dual_encoder, encoder_config, fill_in
from endx_jax.settings import from_mapping

TOKENS = padded(texts((5, 3)), 8)


@pytest.fixture(scope="module")
def source(tiny_bert):
    return pretrained.load_encoder(str(tiny_bert))


def both(source):
    return {"question": source, "answer": source}


def build(source, **settings):
    """The dual encoder, its parameters, and the settings they come from."""
    filled = fill_in(from_mapping(ModelSettings, settings, "model"), source)
    model = build_dual_encoder(filled, both(source))
    return model, initial_params(model, filled, both(source), jax.random.key(0)), filled


def test_unset_settings_come_from_the_folder_and_given_ones_are_kept(tmp_path, source):
    folder = write_tiny_bert(tmp_path, hidden_dropout_prob=0.25, attention_probs_dropout_prob=0.0)
    filled = fill_in(ModelSettings(), pretrained.load_encoder(str(folder)))
    assert (filled.pooling, filled.dropout, filled.attention_dropout) == ("mean", 0.25, 0.0)
    filled = fill_in(ModelSettings(pooling="first", dropout=0.0, attention_dropout=0.5), source)
    assert (filled.pooling, filled.dropout, filled.attention_dropout) == ("first", 0.0, 0.5)


def test_a_pooling_that_no_file_states_is_named(tmp_path):
    source = pretrained.load_encoder(str(write_tiny_bert(tmp_path / "bert")))
    with pytest.warns(UserWarning, match="is an encoder that states no pooling .* is the mean of its tokens"):
        fill_in(ModelSettings(), source)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fill_in(ModelSettings(pooling="mean"), source)
        fill_in(ModelSettings(encoder="transformer"), source)


def test_pretrained_weights_are_used_as_they_are_below_a_projection_that_depends_on_the_key(source):
    model, params, filled = build(source, projection=6)
    chex.assert_trees_all_equal_shapes_and_dtypes(params, jax.eval_shape(model.init, jax.random.key(0)))
    kernel = params["shared"].pop("projection")["kernel"]
    chex.assert_trees_all_equal(params, {"shared": source.params()})
    other = initial_params(model, filled, both(source), jax.random.key(1))["shared"]["projection"]["kernel"]
    assert kernel.shape == other.shape == (WIDTH, 6)
    assert not np.allclose(kernel, other)


@pytest.mark.parametrize(
    ("settings", "of_tower", "of_encoder", "of_config"),
    [
        ({}, {"normalize": True, "pooling": mean}, {"remat": "none", "dtype": jnp.float32}, {"dropout": 0.1}),
        ({"normalize": False, "pooling": "first"}, {"normalize": False, "pooling": first}, {}, {}),
        ({"remat": "full", "dtype": "bfloat16"}, {}, {"remat": "full", "dtype": jnp.bfloat16}, {}),
        ({"dropout": 0.5}, {}, {}, {"dropout": 0.5, "attention_dropout": 0.1}),
        ({"product_dtype": "bfloat16"}, {}, {}, {"product_dtype": "bfloat16"}),
        ({"attention_dropout": 0.0}, {}, {}, {"dropout": 0.1, "attention_dropout": 0.0}),
    ],
)
def test_settings_reach_the_parts_of_the_tower(source, settings, of_tower, of_encoder, of_config):
    one = build(source, **settings)[0].question
    for part, expected in ((one, of_tower), (one.encoder, of_encoder), (one.encoder.config, of_config)):
        assert {name: getattr(part, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("settings", "width"),
    [
        ({"encoder": "rnn", "new_encoder": {"layers": 1, "width": 10}, "pooling": "multi_hop", "sharing": "ade"}, 10),
        ({"encoder": "transformer", "new_encoder": {"heads": 4, "layers": 1}}, WIDTH),
    ],
)
def test_a_new_encoder_stands_on_the_pretrained_token_table(source, settings, width):
    model, params, _ = build(source, **settings)
    chex.assert_trees_all_equal_shapes_and_dtypes(params, jax.eval_shape(model.init, jax.random.key(0)))
    assert jax.eval_shape(lambda p: model.encode(p, "question", TOKENS), params).shape == (2, width)
    question, answer = (model.tower_params(params, side) for side in ("question", "answer"))
    for tower in (question, answer):
        chex.assert_trees_all_equal(tower["token_embedder"], source.params()["token_embedder"])
    if settings.get("sharing") == "ade":  # drawn apart
        assert not np.allclose(question["pooling"]["hop_kernel"], answer["pooling"]["hop_kernel"])
        of_question, of_answer = (tower["encoder"]["layers_0"]["input_kernel"] for tower in (question, answer))
        assert not np.allclose(of_question, of_answer)


def test_new_encoders_are_as_the_settings_say(source):
    def built(**settings):
        filled = fill_in(from_mapping(ModelSettings, settings, "model"), source)
        return build_dual_encoder(filled, both(source)).question

    of_gru = {"layers": 3, "width": 8, "bidirectional": False}
    tower = built(encoder="gru", new_encoder=of_gru, dropout=0.3, remat="full")
    assert tower.encoder.config == RecurrentConfig("gru", 3, 8, False, 0.3)
    assert tower.encoder.remat == "full"
    assert tower.pooling is mean
    hops = {"pooling": "multi_hop", "multi_hop": {"hops": 5}}
    tower = built(encoder="transformer", new_encoder={"heads": 4}, attention_dropout=0.2, **hops)
    config = tower.encoder.config
    assert isinstance(tower.encoder, TransformerEncoder)
    assert (config.width, config.layers, config.heads, config.mlp_width) == (WIDTH, 2, 4, 4 * WIDTH)
    assert (config.positions, config.attention_dropout) == (source.config.positions, 0.2)
    assert tower.pooling == MultiHopAttention(5, 256)


def test_positions_of_new_encoders_on_tokens_without_a_limit(tmp_path):
    tokens = pretrained.PretrainedTokens(tmp_path, Head(tmp_path), {"model_type": "t5", "vocab_size": 9, "d_model": 24})
    assert encoder_config(ModelSettings(encoder="transformer"), tokens).positions == 512
    assert encoder_config(ModelSettings(encoder="gru"), tokens).positions is None


def test_a_token_table_alone_is_a_tower_of_any_token_weights(source):
    tokens = pretrained.load_tokens(str(source.folder))
    weights = {side: np.arange(tokens.config.vocab_size, dtype=np.float32) for side in SIDES}
    filled = fill_in(ModelSettings(encoder="none", token_weights="idf", sharing="ade"), tokens)
    model = build_dual_encoder(filled, both(tokens))
    params = initial_params(model, filled, both(tokens), jax.random.key(0), weights)
    chex.assert_trees_all_equal_shapes_and_dtypes(params, jax.eval_shape(model.init, jax.random.key(0)))
    for side in SIDES:
        assert set(params[side]) == {"token_embedder", "token_weights"}
        np.testing.assert_array_equal(params[side]["token_weights"]["weight"], weights[side])
