"""Pooled layers: as towers of each mixture would embed, and the search over mixtures."""

import dataclasses
import math

import jax
import numpy as np
import pytest
from helpers import TINY, one_line_error, padded, random_params, texts, tower

from endx_jax.models import DualEncoder, RecurrentConfig, RecurrentEncoder, TokenEmbedder, Tower
from endx_jax.models.static import TokenWeights
from reproduction.layers import IDF, PLAIN, PooledLayers, best_mixture, layer_names, mixtures, pool_layers

TOKENS = padded(texts((5, 2, 6)), 6)
ONE_LAYER = dataclasses.replace(TINY, layers=1)
WEIGHTED = {"token_weights": TokenWeights(TINY.vocab_size)}


def test_a_mixture_of_pooled_layers_is_what_a_tower_of_that_mixture_embeds():
    model = DualEncoder(*(tower(ONE_LAYER, **WEIGHTED),) * 2)
    params = {"shared": random_params(model.question, TOKENS)}
    pooled = np.asarray(jax.jit(lambda params: pool_layers(model, params, "question", TOKENS))(params))
    assert pooled.shape == (3, 2, 3, 16)
    found = PooledLayers(pooled, pooled, [[0], [1], [2]])
    weights = (0.5, 0.2, 0.3)
    for weighting, parts in ((PLAIN, {}), (IDF, WEIGHTED)):
        mixed = tower(ONE_LAYER, layer_weights=weights, **parts)
        expected = jax.jit(mixed.apply)({"params": params["shared"]}, TOKENS)
        np.testing.assert_allclose(found.embeddings(weights, weighting)[0], expected, atol=1e-6)


@pytest.mark.parametrize(("layers", "parts"), [(1, 4), (2, 4), (3, 4), (8, 2)])
def test_mixtures_are_all_ways_of_sharing(layers, parts):
    found = [*mixtures(layers, parts)]
    assert len(set(found)) == len(found) == math.comb(layers + parts - 1, parts)
    assert all(len(weights) == layers and sum(weights) == 1 and min(weights) >= 0 for weights in found)
    if layers == 2:
        assert sorted(found) == [(0, 1), (0.25, 0.75), (0.5, 0.5), (0.75, 0.25), (1, 0)]


def planted(rng, questions=40, width=6):
    """Questions whose answers one layer finds by half of its columns, another by the rest, and a third not at all."""
    meaning = rng.normal(size=(questions, width))
    layers = [np.zeros((questions, width)), np.zeros((questions, width)), rng.normal(size=(questions, width))]
    layers[0][:, : width // 2], layers[1][:, width // 2 :] = meaning[:, : width // 2], meaning[:, width // 2 :]
    noisy = [layer + 0.4 * rng.normal(size=layer.shape) * (layer != 0) for layer in layers[:2]]
    both = np.stack([layers, [*noisy, rng.normal(size=layers[2].shape)]]).astype(np.float32)
    questions_, candidates = (np.stack([np.moveaxis(x, 0, 1), np.zeros((40, 3, 6))], axis=1) for x in both)
    return PooledLayers(questions_.astype(np.float32), candidates.astype(np.float32), [[n] for n in range(40)])


def test_the_best_mixture_is_found():
    pooled = planted(np.random.default_rng(0))
    best, hits = best_mixture(pooled, PLAIN, 2)
    assert best == (0.5, 0.5, 0)
    found = {weights: pooled.evaluate(weights, PLAIN)[0].metrics["hit@1"] for weights in mixtures(3, 2)}
    assert hits == pytest.approx(max(found.values())) == pytest.approx(found[best])


def test_an_encoder_without_layers_is_refused():
    recurrent = Tower(TokenEmbedder(9, 4), RecurrentEncoder(RecurrentConfig("gru", 1, 4)))
    with one_line_error("RecurrentEncoder gives no layers"):
        layer_names(recurrent)
