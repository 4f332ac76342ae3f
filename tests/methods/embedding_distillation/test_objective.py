"""The distance to a teacher's embeddings against a naive twin, over any division of a step, and what is refused."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import drawn, mesh_of, pairs_batch

from endx_jax.losses import Guide
from endx_jax.methods.embedding_distillation import EmbeddingDistillationObjective, EmbeddingDistillationSettings
from endx_jax.models import SIDES, DualEncoder, TokenEmbedder, Tower
from endx_jax.models.static import NoEncoder
from endx_jax.parallel import batch_sharding
from endx_jax.parallel.execution import Execution

B, WIDTH = 16, 16
TOWER = Tower(TokenEmbedder(50, WIDTH), NoEncoder(), normalize=False)
MODEL = DualEncoder(TOWER, TOWER)
PARAMS = {"dual_encoder": drawn(jax.eval_shape(MODEL.init, jax.random.key(0)))}
VECTORS = np.random.default_rng(0).normal(size=(2, B, WIDTH)).astype(np.float32)
BATCH = dataclasses.replace(pairs_batch(range(B)), extra={"guide": Guide(*VECTORS)})


@functools.cache
def differentiated(execution, **settings):
    chosen = EmbeddingDistillationSettings(teacher="a teacher", **settings)
    objective = EmbeddingDistillationObjective(MODEL, chosen).for_run(execution, 1.0)
    return jax.jit(jax.value_and_grad(objective, has_aux=True))


def compute(batch=BATCH, execution=Execution(), **settings):  # noqa: B008
    rng = jax.random.key(0, impl="threefry2x32")
    return differentiated(execution, **settings)(PARAMS, batch, rng, jnp.int32(0))


def naive(loss: str, student, teacher) -> float:
    """The mean over all texts, one at a time, in float64."""
    values = []
    for s, t in zip(np.concatenate(student).astype(float), np.concatenate(teacher).astype(float), strict=True):
        cosine = s @ t / np.sqrt((s @ s) * (t @ t))
        values.append(1 - cosine if loss == "cosine" else np.mean((s - t) ** 2))
    return float(np.mean(values))


@functools.cache
def embeddings():
    encode = jax.jit(lambda: [MODEL.encode(PARAMS["dual_encoder"], side, getattr(BATCH, side)) for side in SIDES])
    return [np.asarray(side) for side in encode()]


@pytest.mark.parametrize("loss", ["cosine", "squared"])
def test_the_loss_is_the_mean_over_texts(loss):
    (value, metrics), _ = compute(loss=loss)
    np.testing.assert_allclose(value, naive(loss, embeddings(), VECTORS), rtol=1e-5)
    np.testing.assert_allclose(metrics["teacher_cosine"], 1 - naive("cosine", embeddings(), VECTORS), rtol=1e-4)
    assert abs(value - naive(loss, embeddings(), VECTORS[::-1])) > 1e-3  # each side has its own teacher


def test_devices_and_chunks_change_nothing():
    (expected, _), gradients = compute(loss="cosine")
    mesh = mesh_of(8)
    placed = jax.device_put(BATCH, batch_sharding(mesh))
    (found, _), other = compute(placed, Execution(mesh, tower_chunk=1, loss_tile=2), loss="cosine")
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    for one, two in zip(jax.tree.leaves(gradients), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(two, one, atol=1e-6)
