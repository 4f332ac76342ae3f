"""The distance to a teacher's embeddings against a naive twin, over any division of a step, and what is refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import random_params

from endx_jax.batch import Batch, Tokens
from endx_jax.losses import Guide
from endx_jax.methods.embedding_distillation import EmbeddingDistillationObjective, EmbeddingDistillationSettings
from endx_jax.models import SIDES, DualEncoder, TokenEmbedder, Tower
from endx_jax.models.static import NoEncoder
from endx_jax.parallel import MeshSettings, batch_sharding, make_mesh
from endx_jax.parallel.execution import Execution

B, WIDTH = 16, 16
TOWER = Tower(TokenEmbedder(50, WIDTH), NoEncoder(), normalize=False)
MODEL = DualEncoder(TOWER, TOWER)
DRAW = np.random.default_rng(0)
TOKENS = Tokens(jnp.zeros((1, 2), jnp.int32), jnp.ones((1, 2), bool))
PARAMS = {"dual_encoder": MODEL.join({side: random_params(TOWER, TOKENS, seed=n) for n, side in enumerate(SIDES)})}


def vectors(width: int = WIDTH) -> jax.Array:
    return jnp.asarray(DRAW.normal(size=(B, width)), jnp.float32)


def a_batch(width: int = WIDTH) -> Batch:
    texts = {side: Tokens(jnp.asarray(DRAW.integers(1, 50, (B, 5))), jnp.ones((B, 5), bool)) for side in SIDES}
    ids = jnp.arange(B)
    guide = Guide(vectors(width), vectors(width))
    return Batch(**texts, question_id=ids, answer_id=ids, positive_ids=ids[:, None], extra={"guide": guide})


BATCH = a_batch()


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
    teacher = [np.asarray(side) for side in BATCH.extra["guide"][:2]]
    (value, metrics), _ = compute(loss=loss)
    np.testing.assert_allclose(value, naive(loss, embeddings(), teacher), rtol=1e-5)
    np.testing.assert_allclose(metrics["teacher_cosine"], 1 - naive("cosine", embeddings(), teacher), rtol=1e-4)
    assert abs(value - naive(loss, embeddings(), teacher[::-1])) > 1e-3  # each side has its own teacher


def test_devices_and_chunks_change_nothing():
    (expected, _), gradients = compute(loss="cosine")
    mesh = make_mesh(MeshSettings(), jax.devices()[:8])
    placed = jax.device_put(BATCH, batch_sharding(mesh))
    (found, _), other = compute(placed, Execution(mesh, tower_chunk=1, loss_tile=2), loss="cosine")
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    for one, two in zip(jax.tree.leaves(gradients), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(two, one, atol=1e-6)
