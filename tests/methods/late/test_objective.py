"""The objective of late interaction: distillation, and the memory of its loss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from endx_jax.batch import TokenVectors
from endx_jax.losses import TokenMasks, in_batch_softmax, listwise_kl, margin_mse
from endx_jax.losses.maxsim import tile_of
from endx_jax.methods.dual.settings import DistillationSettings
from endx_jax.methods.late import LateObjective, LateSettings
from endx_jax.methods.objective import Embeddings

B, K, E = 3, 2, 4


def drawn(*shape, seed):
    draw = np.random.default_rng(seed)
    return TokenVectors(jnp.asarray(draw.normal(size=(*shape, E)), jnp.float32), jnp.asarray(draw.random(shape) < 0.8))


EMBEDDED = Embeddings(drawn(B, 3, seed=0), drawn(B, 5, seed=1), drawn(B, K, 4, seed=2))


def score(question: int, texts: TokenVectors, *place: int) -> float:
    asked = np.asarray(EMBEDDED.question.values)[question][np.asarray(EMBEDDED.question.mask)[question]]
    return (asked @ np.asarray(texts.values)[place][np.asarray(texts.mask)[place]].T).max(axis=1).sum()


@pytest.mark.parametrize("name", ["margin_mse", "listwise_kl"])
def test_a_teacher_is_compared_with_maxsim_of_the_candidates(name):
    settings = LateSettings(temperature=0.5, distillation=DistillationSettings(loss=name, contrastive_weight=0.0))
    teacher = np.random.default_rng(3).normal(size=(B, 1 + K)).astype(np.float32)
    teacher[1, 2] = np.nan
    arrays = {"teacher": jnp.asarray(teacher), "hard_negative_ids": jnp.ones((B, K), jnp.int32)}
    loss, _ = LateObjective(None, settings).retrieval_loss({"temperature": jnp.asarray(0.5)}, (EMBEDDED, arrays))
    right, hard = EMBEDDED.answer, EMBEDDED.hard_negatives
    scores = np.array([[score(i, right, i), *(score(i, hard, i, k) for k in range(K))] for i in range(B)])
    expected = {"margin_mse": margin_mse, "listwise_kl": listwise_kl}[name]
    scores = scores / 0.5 if name == "listwise_kl" else scores
    given = teacher / settings.distillation.temperature
    value = expected(jnp.asarray(scores, jnp.float32), jnp.asarray(given), where=jnp.isfinite(teacher))[0]
    np.testing.assert_allclose(loss, value, rtol=1e-5)


def test_the_loss_takes_a_hundredth_of_the_memory_of_all_products_of_tokens():
    """Compiled for a batch of 1,024 and the lengths of ColBERT; nothing is computed."""
    size, question, answer, width = 1024, 32, 180, 16

    def loss(question_values, answer_values, masks, tile):
        return in_batch_softmax(question_values, answer_values, token_masks=masks, tile=tile)[0]

    shapes = [jax.ShapeDtypeStruct((size, length, width), jnp.float32) for length in (question, answer)]
    masks = TokenMasks(*(jax.ShapeDtypeStruct((size, length), bool) for length in (question, answer)))
    compute = jax.jit(jax.value_and_grad(loss, (0, 1)), static_argnums=3)
    tiled = compute.lower(*shapes, masks, tile_of(question, answer)).compile().memory_analysis().temp_size_in_bytes
    assert tiled < 4 * size**2 * question * answer / 100
