"""The pair classifier's objective against its parts, and its independence of how the work is cut up."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import mesh_of, padded, random_params, texts, without_metrics

from endx_jax import losses
from endx_jax.batch import Tokens
from endx_jax.data.batches.packing import PackingPlan
from endx_jax.encoders.bert import BertConfig
from endx_jax.methods.pair import PairObjective, PairSettings
from endx_jax.methods.pair.batches import PairBatch
from endx_jax.models import DualEncoder, TokenEmbedder, Tower, TransformerEncoder
from endx_jax.models.dropout import example_keys, fold
from endx_jax.models.pooling import first
from endx_jax.parallel import batch_sharding
from endx_jax.parallel.execution import Execution

pair_binary = without_metrics(losses.pair_binary)
pair_softmax = without_metrics(losses.pair_softmax)

B, K, LENGTH = 16, 2, 8
RNG, STEP = jax.random.key(2, impl="threefry2x32"), jnp.int32(3)
CONFIG = BertConfig(vocab_size=50, width=4, layers=1, heads=1, mlp_width=4, positions=16, dropout=0.2)


def build(**settings):
    tower = Tower(TokenEmbedder(CONFIG.vocab_size, CONFIG.width), TransformerEncoder(CONFIG), first)
    objective = PairObjective(DualEncoder(tower, tower), PairSettings(**settings))
    tokens = Tokens(jnp.zeros((1, 2), jnp.int32), jnp.ones((1, 2), bool))
    own = {"shared": random_params(tower, tokens)}
    head = random_params(objective.classifier.head, jnp.zeros((1, CONFIG.width)), seed=1)
    return objective, {"dual_encoder": own, "pair": head}


@pytest.fixture(scope="module")
def batch():
    draw = np.random.default_rng(0)
    shape = (B, 1 + K)
    rows = padded(texts(draw.integers(4, LENGTH + 1, B * (1 + K))), LENGTH)
    ids, mask = (np.asarray(x).reshape(*shape, LENGTH) for x in (rows.ids, rows.mask))
    where = draw.random(shape) < 0.8
    where[:, 0] = True
    pairs = Tokens(ids, mask, second=draw.integers(1, 4, shape).astype(np.int32))
    return PairBatch(pairs=pairs, where=where, question_id=np.arange(B, dtype=np.int32))


def scores_of(objective, params, batch):
    """Each pair by itself, with the key that is its own."""
    keys = example_keys(RNG, STEP, B)
    columns = []
    for column in range(1 + K):
        own = jax.tree.map(lambda x: x[:, column], batch.pairs)  # noqa: B023
        columns.append(objective.classifier.score(params["dual_encoder"], params["pair"], own, fold(keys, column)))
    return jnp.stack(columns, axis=1)


@pytest.fixture(scope="module")
def uncut(batch):
    """The scores, the losses of them, the softmax objective and its gradient, and the binary one: in one program."""
    (softmax, params), (binary, _) = build(loss="softmax"), build(loss="binary")

    @jax.jit
    def compute(params):
        scores = scores_of(softmax, params, batch)
        expected = [function(scores, where=batch.where) for function in (pair_softmax, pair_binary)]
        found = jax.value_and_grad(softmax, has_aux=True)(params, batch, RNG, STEP)
        return scores, expected, found, binary(params, batch, RNG, STEP)

    return jax.device_get(compute(params))


def test_the_loss_is_of_the_scores_of_all_pairs(batch, uncut):
    scores, expected, (softmax, _), binary = uncut
    counted = np.where(batch.where, scores, -np.inf)
    for right, (loss, metrics) in zip(expected, (softmax, binary), strict=True):
        np.testing.assert_allclose(loss, right, rtol=1e-5)
        np.testing.assert_allclose(metrics["pair_accuracy"], (scores[:, 0] > counted[:, 1:].max(1)).mean(), rtol=1e-6)
        np.testing.assert_allclose(metrics["negatives"], batch.where[:, 1:].sum(1).mean(), rtol=1e-6)


def test_devices_chunks_and_packing_change_nothing(batch, uncut):
    (objective, params), (_, _, ((loss, _), gradient), _) = build(loss="softmax"), uncut
    assert np.abs(gradient["dual_encoder"]["shared"]["encoder"]["type_embedding"]).min() > 0
    mesh, lengths = mesh_of(4), {"pairs": batch.pairs.mask.sum(-1)}
    execution = Execution(mesh, 3, packed=True)
    division = {"shards": 4, "chunks": execution.chunks(B), "steps": 10**9}
    packing = PackingPlan.from_batches([lengths], {"pairs": LENGTH}, **division).choose(lengths)["pairs"]
    laid_out = dataclasses.replace(batch, pairs=dataclasses.replace(batch.pairs, packing=packing))
    laid_out = jax.device_put(laid_out, batch_sharding(mesh))
    cut = objective.for_run(execution, 1.0)
    found = jax.jit(jax.value_and_grad(lambda params, batch: cut(params, batch, RNG, STEP)[0]))(params, laid_out)
    chex.assert_trees_all_close(jax.device_get(found), (loss, gradient), rtol=2e-4, atol=1e-6)
