"""Matching pairs: the losses that are chosen, and their wrong pairs."""

import jax
import jax.numpy as jnp
import numpy as np
from helpers import drawn, pairs_batch, without_metrics

from endx_jax import losses
from endx_jax.losses.matching import draw_others
from endx_jax.methods.vae import MatchingObjective, MatchingSettings
from endx_jax.methods.vae.matching import _DRAW
from endx_jax.models import DualEncoder, TokenEmbedder, Tower
from endx_jax.models.dropout import example_keys, fold
from endx_jax.models.static import NoEncoder

in_batch_softmax = without_metrics(losses.in_batch_softmax)
sampled_matching = without_metrics(losses.sampled_matching)

B, WIDTH, VOCABULARY = 6, 4, 50
RNG, STEP = jax.random.key(2, impl="threefry2x32"), jnp.int32(0)


def model(normalize=True):
    tower = Tower(TokenEmbedder(VOCABULARY, WIDTH, initializer_range=1.0), NoEncoder(), normalize=normalize)
    return DualEncoder(tower, tower)


def objective_of(settings):
    objective, key = MatchingObjective(model(), settings), jax.random.key(0)
    return objective, drawn(jax.eval_shape(lambda: objective.init(key, objective.model.init(key))), scale=1.0)


def test_each_match_is_its_loss_of_the_embeddings():
    given, keys = pairs_batch([0, 1, 2, 3, 0, 5], widths=(8, 8)), example_keys(RNG, STEP, B)
    masked, unmasked = MatchingSettings(negatives=9), MatchingSettings(match="bce", mask_false_negatives=False)
    softmax = MatchingSettings(match="inbatch", temperature=0.1)
    whole = MatchingSettings(match="bce", negatives=0, mask_false_negatives=False)
    _, params = objective_of(masked)

    @jax.jit
    def compute(params):
        embedded = objective_of(masked)[0].embed(params, (given, keys))
        pair, known = (embedded.question, embedded.answer), {"answer_id": given.answer_id}
        drawn = {count: draw_others(fold(keys, _DRAW), count) for count in (9, 2)}
        cosines = embedded.question @ embedded.answer.T
        expected = [
            sampled_matching(*pair, drawn[9], kind="mse", **known),
            sampled_matching(*pair, drawn[2], kind="bce"),
            in_batch_softmax(*pair, temperature=0.1, **known),
            # Eq. 6 of Yu et al. over the batch: all B x B pairs, of which the diagonal is right.
            jnp.mean(jnp.where(jnp.eye(B, dtype=bool), -jnp.log((1 + cosines) / 2), -jnp.log((1 - cosines) / 2))),
        ]
        found = [MatchingObjective(model(), s)(params, given, RNG, STEP) for s in (masked, unmasked, softmax, whole)]
        return expected, found

    expected, found = compute(params)
    np.testing.assert_allclose([loss for loss, _ in found], expected, rtol=1e-5)
    of_softmax = {"in_batch_accuracy", "masked_fraction", "temperature"}
    assert [set(metrics) for _, metrics in found] == [set(), set(), of_softmax, set()]
