import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from endx_jax.batch import Batch, Tokens
from endx_jax.errors import EndxError
from endx_jax.losses import in_batch_softmax
from endx_jax.models.dual_encoder import DualEncoder
from endx_jax.models.tower import TokenEmbedder, Tower
from endx_jax.objectives import DualObjective, DualSettings


class Identity(nn.Module):
    """An encoder that encodes nothing, so that embeddings can be computed by hand."""

    def __call__(self, embedded, mask, dropout_keys=None):
        return embedded


TOWER = Tower(TokenEmbedder(12, 4, initializer_range=1.0), Identity(), normalize=False)
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
    params = objective.init(jax.random.key(0), MODEL.init(jax.random.key(1)))
    loss, metrics = objective(params, batch, jax.random.key(2), jnp.int32(0))
    return loss, metrics, params


def embeddings(params, batch):
    table = params["dual_encoder"]["shared"]["token_embedder"]["embedding"]

    def pool(tokens):
        return jnp.stack([table[row[mask]].mean(0) for row, mask in zip(tokens.ids, tokens.mask, strict=True)])

    return pool(batch.question), pool(batch.answer)


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


def test_a_learned_temperature_starts_where_told_and_has_a_gradient():
    objective = DualObjective(MODEL, DualSettings(temperature=0.1, learn_temperature=True))
    params = objective.init(jax.random.key(0), MODEL.init(jax.random.key(1)))
    compute = jax.value_and_grad(objective, has_aux=True)
    (_, metrics), gradients = compute(params, make_batch(), jax.random.key(2), jnp.int32(0))
    np.testing.assert_allclose(metrics["temperature"], 0.1, rtol=1e-6)
    assert abs(float(gradients["log_temperature"])) > 1e-3


@pytest.mark.parametrize(
    ("values", "message"),
    [({"temperature": 0.0}, "must be positive"), ({"direction": "both"}, "question_to_answer, answer_to_question")],
)
def test_settings_out_of_bounds_are_refused(values, message):
    with pytest.raises(EndxError, match=message):
        DualSettings(**values)
