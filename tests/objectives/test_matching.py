"""Matching pairs: the losses that are chosen, and their wrong pairs."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import one_line_error, padded, texts

from endx_jax.batch import Batch
from endx_jax.losses import in_batch_softmax, sampled_matching
from endx_jax.losses.matching import draw_others
from endx_jax.models import DualEncoder, TokenEmbedder, Tower
from endx_jax.models.dropout import example_keys, fold
from endx_jax.objectives import MatchingObjective, MatchingSettings
from endx_jax.objectives.matching import _DRAW

B, WIDTH, VOCABULARY = 6, 4, 50
RNG, STEP = jax.random.key(2, impl="threefry2x32"), jnp.int32(0)


class Identity(nn.Module):
    """An encoder that encodes nothing."""

    def __call__(self, embedded, layout, dropout_keys=None):
        return embedded


def model(normalize=True):
    tower = Tower(TokenEmbedder(VOCABULARY, WIDTH, initializer_range=1.0), Identity(), normalize=normalize)
    return DualEncoder(tower, tower)


def batch(**changes):
    lengths = np.arange(2, 2 + B)
    answer_id = jnp.array([0, 1, 2, 3, 0, 5])
    plain = Batch(
        question=padded(texts(lengths), 8),
        answer=padded(texts(lengths, seed=1), 8),
        question_id=jnp.arange(B),
        answer_id=answer_id,
        positive_ids=answer_id[:, None],
    )
    return dataclasses.replace(plain, **changes)


def compute(settings, given):
    objective = MatchingObjective(model(), settings)
    params = objective.init(jax.random.key(0), objective.model.init(jax.random.key(1)))
    loss, metrics = jax.jit(objective)(params, given, RNG, STEP)
    embeddings = jax.jit(objective.embed)(params, (given, example_keys(RNG, STEP, B)))
    return loss, metrics, embeddings.question, embeddings.answer


@pytest.mark.parametrize(("kind", "masked"), [("mse", True), ("bce", False)])
def test_sampled_pairs(kind, masked):
    settings = MatchingSettings(match=kind, negatives=9, mask_false_negatives=masked)
    loss, metrics, question, answer = compute(settings, batch())
    drawn = draw_others(fold(example_keys(RNG, STEP, B), _DRAW), 9)
    ids = {"answer_id": batch().answer_id} if masked else {}
    np.testing.assert_allclose(loss, sampled_matching(question, answer, drawn, kind=kind, **ids), rtol=1e-5)
    assert metrics == {}


def test_the_softmax_over_the_batch():
    loss, metrics, question, answer = compute(MatchingSettings(match="inbatch", temperature=0.1), batch())
    expected = in_batch_softmax(question, answer, temperature=0.1, answer_id=batch().answer_id)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    assert set(metrics) == {"in_batch_accuracy", "masked_fraction", "temperature"}


def test_hard_negatives_are_for_the_softmax():
    hard = batch().answer
    hard = dataclasses.replace(hard, ids=hard.ids[:, None], mask=hard.mask[:, None])
    given = batch(hard_negatives=hard, hard_negative_ids=jnp.arange(B)[::-1, None])
    with one_line_error("objective.match=mse draws its wrong answers from the batch: set data.hard_negatives=0"):
        compute(MatchingSettings(), given)


def test_cosines_must_rank():
    with one_line_error("objective.match=mse is of cosines; set model.normalize"):
        MatchingObjective(model(normalize=False), MatchingSettings())
    MatchingObjective(model(normalize=False), MatchingSettings(match="inbatch"))
