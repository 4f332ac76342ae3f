"""Decoders: what their states depend on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import random_params

from endx_jax.methods.vae.decoders import DECODERS, Deviation

B, L, D, E, V, W = 3, 5, 4, 6, 9, 8
DRAW = np.random.default_rng(0)
LATENT = DRAW.normal(size=(B, E)).astype(np.float32)
EMBEDDED = DRAW.normal(size=(B, L, D)).astype(np.float32)
MASK = np.arange(L) < np.array([5, 3, 1])[:, None]


@pytest.fixture(scope="module", params=DECODERS)
def decode(request):
    decoder = DECODERS[request.param](V, W)
    params = random_params(decoder, LATENT, EMBEDDED, MASK)
    assert params["vocabulary_kernel"].shape == (V, W)
    assert params["vocabulary_bias"].shape == (V,)
    run = jax.jit(lambda latent, embedded: decoder.apply({"params": params}, latent, embedded, MASK))
    return request.param, run


def test_states_depend_on_their_own_latent_vector(decode):
    name, run = decode
    states = run(LATENT, EMBEDDED)
    assert states.shape == (B, 1 if name == "bag_of_words" else L, W)
    moved = run(LATENT + np.array([[1.0], [0.0], [0.0]], np.float32), EMBEDDED)
    assert np.abs(moved - states)[0].max(-1).min() > 1e-3
    np.testing.assert_array_equal(moved[1:], states[1:])


def test_a_gru_is_given_the_words_before_and_a_bag_none(decode):
    name, run = decode
    states, moved = run(LATENT, EMBEDDED), run(LATENT, EMBEDDED + (np.arange(L) == 2)[None, :, None])
    if name == "bag_of_words":
        np.testing.assert_array_equal(moved, states)
    else:
        np.testing.assert_array_equal(moved[:, :2], states[:, :2])
        assert np.abs(moved - states)[0, 2:].max(-1).min() > 1e-4


def test_deviations_begin_where_told():
    module = Deviation(E, initial=0.25)
    variables = module.init(jax.random.key(0), jnp.zeros((1, D)))
    np.testing.assert_allclose(jnp.exp(module.apply(variables, EMBEDDED[:, 0])), 0.25, rtol=1e-6)
