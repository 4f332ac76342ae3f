"""What the encoder promises on its own: layouts, precision, padding, and the configurations it refuses."""

import functools

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import TINY, padded, random_params, texts
from tiny_bert import sizes

from endx_jax.encoders.bert import BertConfig
from endx_jax.models import TransformerEncoder
from endx_jax.models.layers import ACTIVATIONS, activated
from endx_jax.models.layout import Padded


def inputs():
    return jax.random.normal(jax.random.key(1), (3, 12, TINY.width)), Padded(padded(texts((12, 5, 1)), 12).mask)


PARAMS = random_params(TransformerEncoder(TINY), *inputs())


@jax.jit
def encode(embedded, layout):
    return TransformerEncoder(TINY).apply({"params": PARAMS}, embedded, layout)


def test_newly_drawn_layers_differ_from_each_other_and_not_by_how_they_run():
    embedded, layout = inputs()

    def draw(scan_layers):
        drawn = TransformerEncoder(TINY, scan_layers=scan_layers).init(jax.random.key(0), embedded, layout)["params"]
        return [drawn[f"layers_{n}"]["mlp_up"]["kernel"] for n in range(2)]

    kernels, scanned = jax.jit(draw, static_argnums=0)(False), jax.jit(draw, static_argnums=0)(True)
    assert not np.allclose(*kernels)
    np.testing.assert_array_equal(kernels, scanned)
    assert np.std(kernels) == pytest.approx(TINY.initializer_range, rel=0.1)


def test_a_scan_has_every_output_too():
    embedded, layout = inputs()

    def outputs(scan_layers):
        return TransformerEncoder(TINY, scan_layers=scan_layers).apply({"params": PARAMS}, embedded, layout, every=True)

    plain, scanned = (jax.jit(outputs, static_argnums=0)(scan) for scan in (False, True))
    assert len(scanned) == len(plain) == 1 + TINY.layers
    chex.assert_trees_all_close(scanned, plain, atol=1e-6)


def test_a_large_common_offset_is_taken_out_by_the_norms():
    """Each text shifted by 1,000 in all channels: E[x^2] - E[x]^2 would lose its variance of 1 among 1e6."""
    embedded, layout = inputs()
    np.testing.assert_allclose(encode(embedded + 1000.0, layout), encode(embedded, layout), atol=2e-3)


def test_every_key_of_a_config_is_read():
    optional = {"type_vocab_size": 3, "hidden_act": "relu", "layer_norm_eps": 1e-5, "hidden_dropout_prob": 0.2}
    optional |= {"attention_probs_dropout_prob": 0.3, "initializer_range": 0.5, "pad_token_id": 7}
    config = BertConfig.from_hugging_face(sizes(16, 2, 4, 32, 8, vocab_size=30) | optional)
    names = "token_types activation norm_epsilon dropout attention_dropout initializer_range pad_id".split()
    assert [getattr(config, name) for name in names] == [*optional.values()]


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_flax_s_and_keep_one_array_for_the_gradient(name):
    x = np.linspace(-5, 5, 64)
    twins = {"gelu": functools.partial(nn.gelu, approximate=False), "relu": nn.relu, "silu": nn.silu}
    with jax.enable_x64(True):
        exact, exact_pull = jax.vjp(twins.get(name, nn.gelu), x)
        slope = np.asarray(exact_pull(np.ones_like(x))[0])
    for dtype, tolerance in ((jnp.float32, 2e-6), (jnp.bfloat16, 0.03)):
        function = functools.partial(activated, ACTIVATIONS[name])
        result, pull = jax.jit(functools.partial(jax.vjp, function))(x.astype(dtype))
        np.testing.assert_allclose(result, exact, atol=tolerance)
        np.testing.assert_allclose(pull(jnp.ones_like(result))[0], slope, atol=tolerance)
        assert [leaf.shape for leaf in jax.tree.leaves(pull)] == [x.shape]
