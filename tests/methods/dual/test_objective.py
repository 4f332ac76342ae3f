import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from endx_jax import losses
from endx_jax.batch import Batch, Tokens
from endx_jax.errors import EndxError
from endx_jax.methods.dual import DualObjective, DualSettings
from endx_jax.methods.dual.batches import ContrastiveBatch
from endx_jax.methods.dual.settings import ContrastiveSettings, DistillationSettings
from endx_jax.models.dual_encoder import DualEncoder
from endx_jax.models.static import NoEncoder
from endx_jax.models.tower import TokenEmbedder, Tower


def in_batch_softmax(*pair, **settings):
    return jax.jit(lambda *pair: losses.in_batch_softmax(*pair, **settings)[0])(*pair)


TOWER = Tower(TokenEmbedder(12, 4, initializer_range=1.0), NoEncoder(), normalize=False)
MODEL = DualEncoder(TOWER, TOWER)


def make_batch(answer_id=(0, 1, 2)):
    ids = jnp.array([[1, 2], [3, 0], [4, 5]])
    mask = jnp.array([[True, True], [True, False], [True, True]])
    return Batch(
        question=Tokens(ids, mask),
        answer=Tokens(ids + 6, mask),
        question_id=jnp.arange(3),
        answer_id=jnp.array(answer_id),
        positive_ids=jnp.array(answer_id)[:, None],
    )


def evaluate(settings, batch):
    objective = DualObjective(MODEL, settings)
    params = jax.jit(lambda: objective.init(jax.random.key(0), MODEL.init(jax.random.key(1))))()
    loss, metrics = jax.jit(objective)(params, batch, jax.random.key(2), jnp.int32(0))
    return loss, metrics, params


def embeddings(params, batch):
    """Of questions, answers and, if there are any, hard negatives."""
    table = np.asarray(params["dual_encoder"]["shared"]["token_embedder"]["embedding"])

    def pool(tokens):
        rows = zip(*(np.asarray(x).reshape(-1, 2) for x in (tokens.ids, tokens.mask)), strict=True)
        return np.stack([table[ids[mask]].mean(0) for ids, mask in rows]).reshape(*tokens.ids.shape[:-1], 4)

    return [pool(side) for side in (batch.question, batch.answer, batch.hard_negatives) if side is not None]


def test_the_loss_is_the_in_batch_softmax_of_the_towers():
    batch = make_batch()
    loss, metrics, params = evaluate(DualSettings(temperature=0.5), batch)
    question, answer = embeddings(params, batch)
    np.testing.assert_allclose(loss, in_batch_softmax(question, answer, temperature=0.5), rtol=1e-5)
    accuracy = np.mean(np.argmax(question @ answer.T, 1) == np.arange(3))
    np.testing.assert_allclose(metrics["in_batch_accuracy"], accuracy)
    assert metrics["masked_fraction"] == 0
    assert metrics["temperature"] == 0.5


def test_equal_answers_are_masked_and_counted():
    batch = make_batch(answer_id=(0, 1, 0))
    masked, metrics, params = evaluate(DualSettings(temperature=1.0), batch)
    question, answer = embeddings(params, batch)
    expected = in_batch_softmax(question, answer, temperature=1.0, answer_id=batch.answer_id)
    np.testing.assert_allclose(masked, expected, rtol=1e-5)
    np.testing.assert_allclose(metrics["masked_fraction"], 2 / 6)
    unmasked, metrics, _ = evaluate(DualSettings(temperature=1.0, mask_false_negatives=False), batch)
    assert metrics["masked_fraction"] == 0
    assert unmasked > masked


def with_hard_negatives(batch):
    """Two a question: one is missing, and one is the answer of another question."""
    ids = jnp.array([[[7, 8], [9, 0]], [[10, 11], [7, 0]], [[6, 0], [8, 9]]])
    mask = jnp.array([[[True, True], [True, False]], [[True, True], [True, False]], [[True, False], [True, True]]])
    hard_negative_ids = jnp.array([[1, -1], [5, 6], [0, 7]])
    return dataclasses.replace(batch, hard_negatives=Tokens(ids, mask), hard_negative_ids=hard_negative_ids)


@pytest.mark.parametrize("masking", [True, False])
def test_hard_negatives_are_encoded_as_answers_and_join_the_loss(masking):
    batch = with_hard_negatives(make_batch())
    loss, _, params = evaluate(DualSettings(temperature=0.5, mask_false_negatives=masking), batch)
    question, answer, hard = embeddings(params, batch)
    ids = {"answer_id": batch.answer_id, "positive_ids": batch.positive_ids} if masking else {}
    ids |= {"hard_negatives": hard, "hard_negative_ids": batch.hard_negative_ids}
    expected = in_batch_softmax(question, answer, temperature=0.5, **ids)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    assert not np.allclose(loss, in_batch_softmax(question, answer, temperature=0.5), rtol=1e-3)


def test_each_hard_negative_has_dropout_keys_of_its_own():
    """The same tokens as answer and as both hard negatives: dropping out alike, their embeddings would be equal."""
    seen = []

    class Recorder(DualEncoder):
        def encode(self, params, side, tokens, dropout_keys=None):
            seen.append(jax.random.key_data(dropout_keys))
            return super().encode(params, side, tokens, dropout_keys)

    objective = DualObjective(Recorder(TOWER, TOWER), DualSettings())
    batch = with_hard_negatives(make_batch())

    @jax.jit
    def keys_used():
        params = objective.init(jax.random.key(0), MODEL.init(jax.random.key(1)))
        objective(params, batch, jax.random.key(2), jnp.int32(0))
        return seen

    keys = np.concatenate(keys_used())
    assert len(np.unique(keys, axis=0)) == len(keys) == 3 * (1 + 1 + 2)


def test_the_sigmoid_loss_has_a_learned_bias():
    settings = DualSettings(temperature=0.5, contrastive=ContrastiveSettings(loss="sigmoid", bias=-2.0))
    batch = make_batch()
    loss, metrics, params = evaluate(settings, batch)
    expected, _ = losses.in_batch_sigmoid(*embeddings(params, batch), temperature=0.5, bias=-2.0)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    assert metrics["bias"] == params["logit_bias"] == -2.0


@pytest.mark.parametrize("name", ["margin_mse", "listwise_kl"])
def test_distillation_joins_the_loss(name):
    """The teacher's scores are divided by 4 and, for the divergence, ours by the temperature."""
    teacher = jnp.array([[4.0, 2.0, jnp.nan], [1.0, 0.0, 8.0], [3.0, 3.0, 1.0]])
    batch = with_hard_negatives(make_batch())
    batch = ContrastiveBatch(**vars(batch), teacher=teacher)
    distillation = DistillationSettings(loss=name, weight=2.0, contrastive_weight=0.5, temperature=4.0)
    loss, metrics, params = evaluate(DualSettings(temperature=0.5, distillation=distillation), batch)
    plain, _, _ = evaluate(DualSettings(temperature=0.5), batch)
    np.testing.assert_allclose(loss, 0.5 * plain + 2.0 * metrics["distillation_loss"], rtol=1e-5)
    question, answer, hard = embeddings(params, batch)
    scores = jnp.einsum("be,bke->bk", question, jnp.concatenate([answer[:, None], hard], axis=1))
    scores = scores / 0.5 if name == "listwise_kl" else scores
    expected, _ = getattr(losses, name)(scores, teacher / 4, where=jnp.isfinite(teacher))
    np.testing.assert_allclose(metrics["distillation_loss"], expected, rtol=1e-5)


def test_distillation_of_prefixes_is_their_weighted_sum():
    teacher = jnp.array([[4.0, 2.0, 1.0], [1.0, 0.0, 8.0], [3.0, 3.0, 1.0]])
    batch = ContrastiveBatch(**vars(with_hard_negatives(make_batch())), teacher=teacher)
    settings = DualSettings(distillation=DistillationSettings(loss="margin_mse"))

    def distilled(**prefixes):
        return evaluate(dataclasses.replace(settings, **prefixes), batch)[1]["distillation_loss"]

    by_width = [distilled(matryoshka_dims=(width,)) for width in (2, 4)]
    both = distilled(matryoshka_dims=(4, 2), matryoshka_weights=(3.0, 0.5))
    np.testing.assert_allclose(both, 0.5 * by_width[0] + 3.0 * by_width[1], rtol=1e-5)
    np.testing.assert_allclose(by_width[1], distilled(), rtol=1e-5)
    assert abs(by_width[0] - by_width[1]) > 1e-3


def test_prefixes_wider_than_the_embeddings_are_refused():
    with pytest.raises(EndxError, match=r"objective.matryoshka_dims is \(2, 8\), but the embeddings have 4 numbers"):
        evaluate(DualSettings(matryoshka_dims=(2, 8)), make_batch())


def test_a_learned_temperature_starts_where_told_and_has_a_gradient():
    objective = DualObjective(MODEL, DualSettings(temperature=0.1, learn_temperature=True))
    params = objective.init(jax.random.key(0), MODEL.init(jax.random.key(1)))
    compute = jax.jit(jax.value_and_grad(objective, has_aux=True))
    (_, metrics), gradients = compute(params, make_batch(), jax.random.key(2), jnp.int32(0))
    np.testing.assert_allclose(metrics["temperature"], 0.1, rtol=1e-6)
    assert abs(float(gradients["log_temperature"])) > 1e-3
