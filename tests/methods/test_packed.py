"""Objectives of packed texts against those of padded ones, however the work is cut up: with dropout, on real plans."""

import dataclasses
import functools

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import drawn, largest, mesh_of, padded, texts

from endx_jax.batch import Batch
from endx_jax.data.batches.packing import JOINT, PackingPlan
from endx_jax.methods.dual import DualObjective, DualSettings
from endx_jax.methods.endx import EndxObjective, EndxSettings
from endx_jax.methods.late import LateObjective, LateSettings
from endx_jax.models import DualEncoder, MultiHopAttention, TokenEmbedder, Tower
from endx_jax.models.attention import Pattern, attend_within
from endx_jax.models.dropout import dropout
from endx_jax.models.pooling import every_token
from endx_jax.models.token_embeddings import TokenChoice
from endx_jax.parallel import batch_sharding, state_shardings
from endx_jax.parallel.execution import Execution
from endx_jax.planning.programs import collectives

B, K, WIDTH, VOCABULARY = 24, 2, 4, 50
LIMITS = {"question": 6, "answer": 10, "hard_negatives": 6}
RNG, STEP = jax.random.key(2, impl="threefry2x32"), jnp.int32(3)


class Encoder(nn.Module):
    """One layer of attention and dropout of both kinds: all that an encoder has, and quick to compile."""

    dtype: jnp.dtype = jnp.dtype(jnp.float32)

    @nn.compact
    def __call__(self, embedded, layout, dropout_keys=None):
        query, key, value = (
            nn.Dense(WIDTH, use_bias=False, name=name)(embedded)[..., None, :]
            for name in ("mlp_up", "mlp_down", "mlp_gate")
        )
        x = attend_within(query, key, value, layout, Pattern(1.0, dropout_rate=0.3), dropout_keys=dropout_keys)
        return dropout(jnp.tanh(x[..., 0, :]), layout.token_keys(dropout_keys), 0.2)


TOWER = Tower(TokenEmbedder(VOCABULARY, WIDTH), Encoder(), MultiHopAttention(hops=3, width=4), normalize=False)
MODEL = DualEncoder(TOWER, TOWER)
BY_TOKEN = TOWER.clone(pooling=every_token, tokens=TokenChoice(skip=(3,)))


@functools.cache
def objective(name):
    if name == "late":
        return LateObjective(DualEncoder(BY_TOKEN, BY_TOKEN), LateSettings(direction="sum"))
    if name == "dual":
        return DualObjective(MODEL, DualSettings(temperature=0.5))
    return EndxObjective(MODEL, EndxSettings(temperature=0.5, cross_heads=2, ramp_epochs=0.0))


@functools.cache
def params_of(name):
    own, key = objective(name), jax.random.key(0)
    return drawn(jax.eval_shape(lambda: own.init(key, own.model.init(key))), scale=0.7)


def make_batch(hard_negatives: bool) -> Batch:
    draw = np.random.default_rng(0)
    question, answer, hard = (
        padded(texts(draw.integers(1, 1 + LIMITS[side], count), seed=count), LIMITS[side])
        for side, count in (("question", B), ("answer", B), ("hard_negatives", B * K))
    )
    ids = draw.integers(0, B - 3, B).astype(np.int32)
    extra = {}
    if hard_negatives:
        extra["hard_negatives"] = jax.tree.map(lambda x: x.reshape(B, K, -1), hard)
        extra["hard_negative_ids"] = jnp.asarray(draw.integers(-1, B, (B, K)).astype(np.int32))
    return Batch(question, answer, jnp.arange(B), jnp.asarray(ids), jnp.asarray(ids)[:, None], **extra)


BATCHES = {"dual": make_batch(hard_negatives=True), "endx": make_batch(hard_negatives=False)}
BATCHES["late"] = BATCHES["endx"]  # its hard negatives are packed as the dual encoder's


def pack(batch: Batch, execution: Execution, one_pass: bool) -> Batch:
    sides = {side: getattr(batch, side) for side in LIMITS if getattr(batch, side) is not None}
    lengths = {side: np.asarray(tokens.mask).sum(-1) for side, tokens in sides.items()}
    limits = {side: LIMITS[side] for side in sides} | ({JOINT: max(LIMITS.values())} if one_pass else {})
    plan = PackingPlan.from_batches([lengths], limits, shards=execution.shards, chunks=execution.chunks(B), steps=10**9)
    chosen = plan.choose(lengths)
    assert chosen is plan.profiles[0]
    packed = {side: dataclasses.replace(tokens, packing=chosen[side]) for side, tokens in sides.items()}
    return dataclasses.replace(batch, **packed, packing=chosen.get(JOINT))


def compute(own, params, batch, gradient: bool):
    """The program of the loss, and of its gradient, and what it computes."""
    function = jax.jit(jax.value_and_grad(own, has_aux=True) if gradient else own)
    program = function.lower(params, batch, RNG, STEP).compile()
    return program, program(params, batch, RNG, STEP)


@functools.cache
def of_padded(name, gradient):
    return compute(objective(name), params_of(name), BATCHES[name], gradient)[1]


@pytest.mark.parametrize(
    ("name", "devices", "chunk", "gradient", "one_pass"),
    [
        pytest.param("dual", 1, 5, True, False, marks=pytest.mark.slow),  # 24 rows in 5 chunks of 5
        ("dual", 8, 2, True, True),  # 3 rows a device in 2 chunks of 2
        ("late", 8, 2, False, True),
        pytest.param("late", 8, 2, True, True, marks=pytest.mark.slow),
        pytest.param("endx", 1, 0, True, True, marks=pytest.mark.slow),
        pytest.param("endx", 8, 0, True, False, marks=pytest.mark.slow),
    ],
)
def test_packing_changes_no_loss_and_no_gradient(name, devices, chunk, gradient, one_pass):
    expected = of_padded(name, gradient)
    mesh = mesh_of(devices)
    execution = Execution(mesh, tower_chunk=chunk, packed=True, loss_tile=5 if name == "late" else None)
    own = objective(name).for_run(execution, steps_per_epoch=1.0)
    params = jax.device_put(params_of(name), state_shardings(params_of(name), mesh))
    batch = jax.device_put(pack(BATCHES[name], execution, one_pass), batch_sharding(mesh))
    program, found = compute(own, params, batch, gradient)
    both = jax.device_get((found, expected))
    if gradient:
        (found, found_gradient), (expected, expected_gradient) = both
        atol = 1e-5 * largest(expected_gradient)
        chex.assert_trees_all_close(found_gradient, expected_gradient, rtol=0, atol=atol)
    chex.assert_trees_all_close(*((found, expected) if gradient else both), rtol=2e-5)
    assert {collective.loops for collective in collectives(program.as_text())} == ({0} if devices > 1 else set())


def test_a_packing_without_room_makes_the_loss_nan():
    batch = pack(BATCHES["endx"], Execution(), True)  # without hard negatives, which would take longer to compile
    short = dataclasses.replace(batch.packing, tokens=batch.packing.tokens - 32)
    batch = dataclasses.replace(batch, packing=short)
    loss, _ = jax.jit(objective("dual"))(params_of("dual"), batch, RNG, STEP)
    assert np.isnan(loss)
