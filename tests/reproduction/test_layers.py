"""Pooled layers, as towers of a mixture of them would embed, and the precision-recall curve."""

import jax
import numpy as np
import pytest
from helpers import ONE_LAYER, TINY, padded, random_params, texts, tower
from refusals import check_refusal

from endx_jax.models import DualEncoder, RecurrentConfig, RecurrentEncoder, TokenEmbedder, Tower
from endx_jax.models.static import TokenWeights
from endx_jax.numerics import unit_rows
from reproduction.layers import layer_names, pool_layers, thinned
from reproduction.precision_recall import PrecisionRecall, precision_recall

TOKENS = padded(texts((5, 2, 6)), 6)
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
    check_refusal(lambda: layer_names(recurrent), "RecurrentEncoder gives no layers")


def draw_pairs(levels):
    rng = np.random.default_rng(0)
    scores = rng.integers(0, levels, (40, 30)).astype(np.float32)
    qrels = [sorted(rng.choice(30, 1 + n % 3, replace=False).tolist()) for n in range(40)]
    for row, right in enumerate(qrels):
        scores[row, right] += levels // 3
    return scores, qrels


def test_by_hand():
    # By score: right .9; wrong .8; right .7 and wrong .7, which are taken together; right .1 after wrong .2 and .3.
    scores = np.array([[0.9, 0.8, 0.2], [0.7, 0.7, 0.3], [0.15, 0.1, 0.05]], np.float32)
    found = precision_recall(lambda start, stop: scores[start:stop], [[0], [1], [1]], candidates=3, block=2)
    np.testing.assert_allclose(found.recall, [1 / 3, 2 / 3, 1])
    np.testing.assert_allclose(found.precision, [1, 2 / 4, 3 / 8])
    assert found.average_precision == pytest.approx((1 + 2 / 4 + 3 / 8) / 3)


@pytest.mark.parametrize("levels", [6, 10**6])
def test_the_curve_equals_scikit_learns_and_progress_is_told_over_both_passes(levels):
    metrics = pytest.importorskip("sklearn.metrics")
    scores, qrels, told = *draw_pairs(levels), []
    truth = np.zeros(scores.shape)
    for row, right in enumerate(qrels):
        truth[row, right] = 1
    expected = metrics.average_precision_score(truth.ravel(), scores.ravel())
    precision, recall, _ = metrics.precision_recall_curve(truth.ravel(), scores.ravel())
    points = {(round(r, 9), round(p, 9)) for r, p in zip(recall, precision, strict=True)}
    for block in (16, None):
        options = {"candidates": 30, "block": block, "progress": lambda *n: told.append(n)}
        found = precision_recall(lambda start, stop: scores[start:stop], qrels, **options)
        assert found.average_precision == pytest.approx(expected)
        assert {(round(r, 9), round(p, 9)) for r, p in zip(found.recall, found.precision, strict=True)} <= points
        assert np.all(np.diff(found.recall) > 0)
    assert told[:6] == [(16, 80), (32, 80), (40, 80), (56, 80), (72, 80), (80, 80)]
