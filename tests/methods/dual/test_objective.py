import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import drawn

from endx_jax import losses
from endx_jax.batch import Batch, Tokens
from endx_jax.data.batches.token_tables import Counts
from endx_jax.methods.dual import DualObjective, DualSettings
from endx_jax.methods.dual.settings import ContrastiveSettings, DistillationSettings
from endx_jax.methods.objective import Embeddings
from endx_jax.models.dual_encoder import DualEncoder
from endx_jax.models.static import NoEncoder
from endx_jax.models.tower import TokenEmbedder, Tower


def in_batch_softmax(*pair, **settings):
    return jax.jit(lambda *pair: losses.in_batch_softmax(*pair, **settings)[0])(*pair)


TOWER = Tower(TokenEmbedder(12, 4), NoEncoder(), normalize=False)
MODEL = DualEncoder(TOWER, TOWER)
DRAWN = drawn(jax.eval_shape(MODEL.init, jax.random.key(1)), scale=1.0)


def make_batch(answer_id=(0, 1, 2)):
    ids, mask = np.array([[1, 2], [3, 0], [4, 5]]), np.array([[True, True], [True, False], [True, True]])
    answers = np.array(answer_id)
    return Batch(Tokens(ids, mask), Tokens(ids + 6, mask), np.arange(3), answers, answers[:, None])


def evaluate(batch, *settings):
    """The loss and the metrics of each of the settings, in one program."""
    objectives = [DualObjective(MODEL, one) for one in settings]
    params = [objective.init(jax.random.key(0), DRAWN) for objective in objectives]
    rest = batch, jax.random.key(2), jnp.int32(0)
    return jax.jit(lambda all_params: [f(p, *rest) for f, p in zip(objectives, all_params, strict=True)])(params)


def embeddings(batch):
    """Of questions, answers and, if there are any, hard negatives."""
    table = DRAWN["shared"]["token_embedder"]["embedding"]

    def pool(tokens):
        rows = zip(*(np.asarray(x).reshape(-1, 2) for x in (tokens.ids, tokens.mask)), strict=True)
        return np.stack([table[ids[mask]].mean(0) for ids, mask in rows]).reshape(*tokens.ids.shape[:-1], 4)

    return [pool(side) for side in (batch.question, batch.answer, batch.hard_negatives) if side is not None]


@pytest.mark.parametrize("answer_id", [(0, 1, 2), (0, 1, 0)])
def test_the_loss_is_the_in_batch_softmax_of_the_towers_without_equal_answers_that_are_counted(answer_id):
    batch, settings = make_batch(answer_id), DualSettings(temperature=0.5)
    (loss, metrics), (all_in, of_all) = evaluate(
        batch, settings, dataclasses.replace(settings, mask_false_negatives=False)
    )
    question, answer = embeddings(batch)
    np.testing.assert_allclose(all_in, in_batch_softmax(question, answer, temperature=0.5), rtol=1e-5)
    expected = in_batch_softmax(question, answer, temperature=0.5, answer_id=batch.answer_id)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    right = np.argmax(question @ answer.T, 1) == np.arange(3)
    np.testing.assert_allclose((of_all["in_batch_accuracy"], of_all["temperature"]), (np.mean(right), 0.5))
    equal = 2 * (answer_id[2] == 0)
    np.testing.assert_allclose((metrics["masked_fraction"], of_all["masked_fraction"]), (equal / 6, 0))
    assert (all_in > loss + 1e-4) == bool(equal)


def with_hard_negatives(batch):
    """Two a question: one is missing, and one is the answer of another question."""
    ids = np.array([[[7, 8], [9, 0]], [[10, 11], [7, 0]], [[6, 0], [8, 9]]])
    mask = np.array([[[True, True], [True, False]], [[True, True], [True, False]], [[True, False], [True, True]]])
    hard_negative_ids = np.array([[1, -1], [5, 6], [0, 7]])
    return dataclasses.replace(batch, hard_negatives=Tokens(ids, mask), hard_negative_ids=hard_negative_ids)


def test_hard_negatives_are_encoded_as_answers_and_join_the_loss():
    batch = with_hard_negatives(make_batch())
    masking = [DualSettings(temperature=0.5, mask_false_negatives=masks) for masks in (True, False)]
    (masked, _), (loss, _) = evaluate(batch, *masking)
    question, answer, hard = embeddings(batch)
    softmax = functools.partial(in_batch_softmax, question, answer, temperature=0.5)
    given = {"hard_negatives": hard, "hard_negative_ids": batch.hard_negative_ids}
    np.testing.assert_allclose(loss, softmax(**given), rtol=1e-5)
    expected = softmax(answer_id=batch.answer_id, positive_ids=batch.positive_ids, **given)
    np.testing.assert_allclose(masked, expected, rtol=1e-5)
    assert not np.isclose(masked, loss, rtol=1e-3)
    assert not np.isclose(loss, softmax(), rtol=1e-3)


def test_each_hard_negative_has_dropout_keys_of_its_own():
    seen = []

    class Recorder(DualEncoder):
        def encode(self, params, side, tokens, dropout_keys=None):
            seen.append(jax.random.key_data(dropout_keys))
            return super().encode(params, side, tokens, dropout_keys)

    objective = DualObjective(Recorder(TOWER, TOWER), DualSettings())
    batch = with_hard_negatives(make_batch())

    @jax.jit
    def keys_used():
        objective({"dual_encoder": DRAWN}, batch, jax.random.key(2), jnp.int32(0))
        return seen

    keys = np.concatenate(keys_used())
    assert len(np.unique(keys, axis=0)) == len(keys) == 3 * (1 + 1 + 2)


def test_the_sigmoid_loss_has_a_learned_bias():
    settings = DualSettings(temperature=0.5, contrastive=ContrastiveSettings(loss="sigmoid", bias=-2.0))
    batch = make_batch()
    ((loss, metrics),) = evaluate(batch, settings)
    sigmoid = functools.partial(losses.in_batch_sigmoid, temperature=0.5, bias=-2.0)
    expected, _ = jax.jit(sigmoid)(*embeddings(batch))
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    params = DualObjective(MODEL, settings).init(jax.random.key(0), DRAWN)
    assert metrics["bias"] == params["logit_bias"] == -2.0


def test_distillation_joins_the_loss():
    """The teacher's scores are divided by 4 and, for the divergence, ours by the temperature."""
    teacher = np.float32([[4.0, 2.0, np.nan], [1.0, 0.0, 8.0], [3.0, 3.0, 1.0]])
    batch = dataclasses.replace(with_hard_negatives(make_batch()), extra={"teacher": teacher})
    options = {"weight": 2.0, "contrastive_weight": 0.5, "temperature": 4.0}
    names = {"margin_mse": 1.0, "listwise_kl": 0.5}
    distilled = [DistillationSettings(loss=name, **options) for name in names]
    settings = DualSettings(temperature=0.5)
    (plain, _), *found = evaluate(batch, settings, *(dataclasses.replace(settings, distillation=d) for d in distilled))
    question, answer, hard = embeddings(batch)
    scores = np.einsum("be,bke->bk", question, np.concatenate([answer[:, None], hard], axis=1))
    for (name, divisor), (loss, metrics) in zip(names.items(), found, strict=True):
        np.testing.assert_allclose(loss, 0.5 * plain + 2.0 * metrics["distillation_loss"], rtol=1e-5)
        expect = functools.partial(getattr(losses, name), where=np.isfinite(teacher))
        expected, _ = jax.jit(expect)(scores / divisor, teacher / 4)
        np.testing.assert_allclose(metrics["distillation_loss"], expected, rtol=1e-5)


@pytest.mark.parametrize("loss", ["listwise_kl", "margin_mse"])
def test_a_student_with_the_cosines_of_its_teacher_has_no_gradient(loss):
    settings = DualSettings(temperature=0.1, distillation=DistillationSettings(loss, contrastive_weight=0.0))
    settings = settings.fitted(Counts(3, 3, 6, largest_score=1.0))
    drawn = np.random.default_rng(0).normal(size=(4, 3, 5))
    question, answer, *hard = drawn / np.linalg.norm(drawn, axis=-1, keepdims=True)
    teacher = np.stack([np.sum(question * other, axis=1) for other in (answer, *hard)], axis=1)
    arrays = {"teacher": teacher, "hard_negative_ids": np.ones((3, 2), np.int32)}

    def compute(question):
        rows = Embeddings(question, answer, np.stack(hard, axis=1)), arrays
        return DualObjective(MODEL, settings).retrieval_loss({"temperature": 0.1}, rows)[0]

    with jax.enable_x64(True):
        value, gradient = jax.device_get(jax.jit(jax.value_and_grad(compute))(question))
    np.testing.assert_allclose(value, 0, atol=1e-12)
    np.testing.assert_allclose(gradient, 0, atol=1e-12)


def test_distillation_of_prefixes_is_their_weighted_sum():
    teacher = np.float32([[4.0, 2.0, 1.0], [1.0, 0.0, 8.0], [3.0, 3.0, 1.0]])
    batch = dataclasses.replace(with_hard_negatives(make_batch()), extra={"teacher": teacher})
    both = {"matryoshka_dims": (4, 2), "matryoshka_weights": (3.0, 0.5)}
    prefixes = ({"matryoshka_dims": (2,)}, {"matryoshka_dims": (4,)}, both, {})
    settings = DualSettings(distillation=DistillationSettings(loss="margin_mse", temperature=1.0))
    evaluated = evaluate(batch, *(dataclasses.replace(settings, **changes) for changes in prefixes))
    short, whole, both, plain = (metrics["distillation_loss"] for _, metrics in evaluated)
    np.testing.assert_allclose(both, 0.5 * short + 3.0 * whole, rtol=1e-5)
    np.testing.assert_allclose(whole, plain, rtol=1e-5)
    assert abs(short - whole) > 1e-3


def test_a_learned_temperature_starts_where_told_and_has_a_gradient():
    objective = DualObjective(MODEL, DualSettings(temperature=0.1, learn_temperature=True))
    params = objective.init(jax.random.key(0), DRAWN)
    compute = jax.jit(jax.value_and_grad(objective, has_aux=True))
    (_, metrics), gradients = compute(params, make_batch(), jax.random.key(2), jnp.int32(0))
    np.testing.assert_allclose(metrics["temperature"], 0.1, rtol=1e-6)
    assert abs(float(gradients["log_temperature"])) > 1e-3
