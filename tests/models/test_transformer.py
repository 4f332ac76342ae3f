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

EMBEDDED = np.random.default_rng(1).normal(size=(3, 12, TINY.width)).astype(np.float32)
LAYOUT = Padded(padded(texts((12, 5, 1)), 12).mask)
ENCODERS = {scan: TransformerEncoder(TINY, scan_layers=scan) for scan in (False, True)}
PARAMS = random_params(ENCODERS[False], EMBEDDED, LAYOUT)


@functools.partial(jax.jit, static_argnums=0)
def outputs(scan_layers, embedded):
    return ENCODERS[scan_layers].apply({"params": PARAMS}, embedded, LAYOUT, every=True)


def test_newly_drawn_layers_differ_from_each_other_and_not_by_how_they_run():
    @jax.jit
    def draw():
        drawn = [encoder.init(jax.random.key(0), EMBEDDED, LAYOUT)["params"] for encoder in ENCODERS.values()]
        return [[params[f"layers_{n}"]["mlp_up"]["kernel"] for n in range(2)] for params in drawn]

    kernels, scanned = draw()
    assert not np.allclose(*kernels)
    np.testing.assert_array_equal(kernels, scanned)
    assert np.std(kernels) == pytest.approx(TINY.initializer_range, rel=0.1)


def test_a_scan_has_every_output_too():
    plain, scanned = (outputs(scan, EMBEDDED) for scan in (False, True))
    assert len(scanned) == len(plain) == 1 + TINY.layers
    chex.assert_trees_all_close(scanned, plain, atol=1e-6)


def test_a_large_common_offset_is_taken_out_by_the_norms():
    """Each text shifted by 1,000 in all channels: E[x^2] - E[x]^2 would lose its variance of 1 among 1e6."""
    moved, expected = (outputs(False, EMBEDDED + offset)[-1] for offset in (np.float32(1000), 0))
    np.testing.assert_allclose(moved, expected, atol=2e-3)


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
    function = functools.partial(activated, ACTIVATIONS[name])

    @functools.partial(jax.jit, static_argnums=0)
    def differentiate(function, x):
        result, pull = jax.vjp(function, x)
        return result, *pull(jnp.ones_like(result)), pull

    with jax.enable_x64(True):
        exact, slope, _ = jax.device_get(differentiate(twins.get(name, nn.gelu), x))
    for dtype, tolerance in ((jnp.float32, 2e-6), (jnp.bfloat16, 0.03)):
        result, own, pull = differentiate(function, x.astype(dtype))
        np.testing.assert_allclose(result, exact, atol=tolerance)
        np.testing.assert_allclose(own, slope, atol=tolerance)
        assert [leaf.shape for leaf in jax.tree.leaves(pull)] == [x.shape]
