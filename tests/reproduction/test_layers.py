"""Pooled layers: as towers of a mixture of them would embed."""

import dataclasses

import jax
import numpy as np
from helpers import TINY, one_line_error, padded, random_params, texts, tower

from endx_jax.models import DualEncoder, RecurrentConfig, RecurrentEncoder, TokenEmbedder, Tower
from endx_jax.models.static import TokenWeights
from endx_jax.numerics import unit_rows
from reproduction.layers import layer_names, pool_layers, thinned
from reproduction.precision_recall import PrecisionRecall

TOKENS = padded(texts((5, 2, 6)), 6)
ONE_LAYER = dataclasses.replace(TINY, layers=1)
WEIGHTED = {"token_weights": TokenWeights(TINY.vocab_size)}


def test_a_mixture_of_pooled_layers_is_what_a_tower_of_that_mixture_embeds():
    model = DualEncoder(*(tower(ONE_LAYER, **WEIGHTED),) * 2)
    params = {"shared": random_params(model.question, TOKENS)}
    pooled = np.asarray(jax.jit(lambda params: pool_layers(model, params, "question", TOKENS))(params))
    assert pooled.shape == (3, 2, 3, 16)
    weights = (0.5, 0.2, 0.3)
    for weighting, parts in enumerate(({}, WEIGHTED)):
        mixed = tower(ONE_LAYER, layer_weights=weights, **parts)
        expected = jax.jit(mixed.apply)({"params": params["shared"]}, TOKENS)
        found = unit_rows(np.einsum("nkw,k->nw", pooled[:, weighting], weights))
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_thinned_curve_keeps_its_ends():
    recall = np.linspace(0.1, 1, 10)
    found = thinned(PrecisionRecall(recall, 1 - recall, 0.5), 4)
    np.testing.assert_allclose(found["recall"], [0.1, 0.4, 0.7, 1.0])
    np.testing.assert_allclose(found["precision"], [0.9, 0.6, 0.3, 0.0])


def test_an_encoder_without_layers_is_refused():
    recurrent = Tower(TokenEmbedder(9, 4), RecurrentEncoder(RecurrentConfig("gru", 1, 4)))
    with one_line_error("RecurrentEncoder gives no layers"):
        layer_names(recurrent)
