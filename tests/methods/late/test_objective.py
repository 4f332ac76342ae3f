"""The objective of late interaction: distillation, and the memory of its loss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from endx_jax.batch import TokenVectors
from endx_jax.losses import in_batch_softmax
from endx_jax.losses.maxsim import tile_of
from endx_jax.methods.dual.settings import DistillationSettings
from endx_jax.methods.late import LateObjective, LateSettings
from endx_jax.methods.objective import Embeddings

B, K, E = 3, 2, 4


def drawn(*shape, seed):
    draw = np.random.default_rng(seed)
    return TokenVectors(jnp.asarray(draw.normal(size=(*shape, E)), jnp.float32), jnp.asarray(draw.random(shape) < 0.8))


EMBEDDED = Embeddings(drawn(B, 3, seed=0), drawn(B, 5, seed=1), drawn(B, K, 4, seed=2))


def with_values(values) -> Embeddings:
    return Embeddings(*(side.replace(values=x) for side, x in zip(vars(EMBEDDED).values(), values, strict=True)))


def score(question: int, texts: TokenVectors, *place: int, of: Embeddings) -> jax.Array:
    asked = of.question.values[question][np.asarray(EMBEDDED.question.mask)[question]]
    return (asked @ texts.values[place][np.asarray(texts.mask)[place]].T).max(axis=1).sum()


@pytest.mark.parametrize("name", ["margin_mse", "listwise_kl"])
def test_a_teacher_is_compared_with_maxsim_of_the_candidates(name):
    distillation = DistillationSettings(name, contrastive_weight=0.0, temperature=2.0)
    settings = LateSettings(temperature=0.5, distillation=distillation)
    teacher = np.random.default_rng(3).normal(size=(B, 1 + K)).astype(np.float32)
    teacher[1, 2] = np.nan
    arrays = {"teacher": jnp.asarray(teacher), "hard_negative_ids": jnp.ones((B, K), jnp.int32)}
    where, given = np.isfinite(teacher), np.nan_to_num(teacher / settings.distillation.temperature)

    def loss(values):
        embedded = with_values(values)
        return LateObjective(None, settings).retrieval_loss({"temperature": jnp.asarray(0.5)}, (embedded, arrays))[0]

    def twin(values):
        embedded = with_values(values)
        right, hard = embedded.answer, embedded.hard_negatives
        places = [[(right, i), *((hard, i, k) for k in range(K))] for i in range(B)]
        scores = jnp.array([[score(i, *place, of=embedded) for place in row] for i, row in enumerate(places)])
        if name == "margin_mse":
            margins, wanted = (x[:, :1] - x[:, 1:] for x in (scores, given))
            return jnp.mean(jnp.square(margins - wanted)[where[:, 1:]])
        student, wanted = (jax.nn.log_softmax(jnp.where(where, x, -jnp.inf)) for x in (scores / 0.5, given))
        return jnp.sum(jnp.where(where, jnp.exp(wanted) * (wanted - student), 0)) / B

    values = [side.values for side in vars(EMBEDDED).values()]
    compute = jax.jit(lambda values: [jax.value_and_grad(f)(values) for f in (loss, twin)])
    (value, gradients), (expected, wanted) = compute(values)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    for gradient, of_twin in zip(gradients, wanted, strict=True):
        np.testing.assert_allclose(gradient, of_twin, atol=1e-5 * np.abs(of_twin).max())


def test_the_loss_takes_a_hundredth_of_the_memory_of_all_products_of_tokens():
    size, question, answer, width = 1024, 32, 180, 16

    def loss(question_values, answer_values, masks, tile):
        pair = map(TokenVectors, (question_values, answer_values), masks)
        return in_batch_softmax(*pair, tile=tile)[0]

    shapes = [jax.ShapeDtypeStruct((size, length, width), jnp.float32) for length in (question, answer)]
    masks = [jax.ShapeDtypeStruct((size, length), bool) for length in (question, answer)]
    compute = jax.jit(jax.value_and_grad(loss, (0, 1)), static_argnums=3)
    tiled = compute.lower(*shapes, masks, tile_of(question, answer)).compile().memory_analysis().temp_size_in_bytes
    assert tiled < 4 * size**2 * question * answer / 100
