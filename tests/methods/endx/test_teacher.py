"""The teacher's part above its encoders, against Eqs. 2 to 4 of Wang et al. 2021 written out for one pair at a time."""

import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from endx_jax.errors import EndxError
from endx_jax.methods.endx.teacher import CrossEncoder
from endx_jax.models.pooling import mean

B, N, M, D, HEADS = 2, 3, 4, 8, 2
QUESTION_MASK = np.array([[True, True, True], [True, False, False]])
ANSWER_MASK = np.array([[True, True, False, False], [True, True, True, True]])


@pytest.fixture(scope="module")
def encodings():
    draw = np.random.default_rng(0)
    return draw.normal(size=(B, N, D)).astype(np.float32), draw.normal(size=(B, M, D)).astype(np.float32)


def build(encodings, **options):
    module = CrossEncoder(mean, heads=HEADS, **options)
    inputs = (encodings[0], QUESTION_MASK, encodings[1], ANSWER_MASK)
    return module, jax.jit(module.init)(jax.random.key(0), *inputs), inputs


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def gelu(x):
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / np.sqrt(2)))


def embed_by_hand(params, asking, source, residual=False):
    """One text's embedding from its own encodings and those of the text that asks, both without padding."""
    attention, refinement = params["attention"], params["refinement"]
    heads = []
    for head in np.split(np.arange(D), HEADS):
        query, key, value = (np.array(attention[name]["kernel"])[:, head] for name in ("query", "key", "value"))
        weights = softmax((asking @ query) @ (source @ key).T / np.sqrt(D / HEADS))
        heads.append(weights @ (source @ value))
    x = np.concatenate(heads, axis=-1) @ np.array(attention["output"]["kernel"])
    x = x + asking if residual else x
    up, down = refinement["mlp_up"], refinement["mlp_down"]
    x = x + gelu(x @ np.array(up["kernel"]) + np.array(up["bias"])) @ np.array(down["kernel"]) + np.array(down["bias"])
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
    return x.mean(axis=0)


@pytest.mark.parametrize("residual", [False, True])
def test_it_is_the_paper_s_equations(encodings, residual):
    module, variables, inputs = build(encodings, residual=residual)
    question, answer = jax.jit(module.apply)(variables, *inputs)
    chex.assert_shape((question, answer), (B, D))
    for row in range(B):
        q, a = encodings[0][row][QUESTION_MASK[row]], encodings[1][row][ANSWER_MASK[row]]
        expected = [embed_by_hand(variables["params"], *texts, residual) for texts in ((a, q), (q, a))]
        np.testing.assert_allclose(question[row], expected[0], atol=2e-6)
        np.testing.assert_allclose(answer[row], expected[1], atol=2e-6)


def test_values_in_padding_are_not_read(encodings):
    module, variables, (question, question_mask, answer, answer_mask) = build(encodings)
    expected = jax.jit(module.apply)(variables, question, question_mask, answer, answer_mask)
    noise = 1e3
    noisy = jax.jit(module.apply)(
        variables,
        np.where(question_mask[:, :, None], question, noise),
        question_mask,
        np.where(answer_mask[:, :, None], answer, noise),
        answer_mask,
    )
    chex.assert_trees_all_close(noisy, expected, atol=1e-6)


@pytest.mark.parametrize("residual", [False, True])
def test_the_asking_text_enters_only_through_weights_unless_there_is_a_residual(encodings, residual):
    """A question of one token leaves nothing to weigh, so its embedding is blind to the answer."""
    module, variables, (question, question_mask, answer, answer_mask) = build(encodings, residual=residual)
    before, _ = jax.jit(module.apply)(variables, question, question_mask, answer, answer_mask)
    after, _ = jax.jit(module.apply)(variables, question, question_mask, -answer, answer_mask)
    one_token, several = 1, 0
    blind = np.allclose(before[one_token], after[one_token], atol=1e-6)
    assert blind == (not residual)
    assert not np.allclose(before[several], after[several], atol=1e-3)


def test_embeddings_can_have_unit_norm(encodings):
    module, variables, inputs = build(encodings, normalize=True)
    for embedding in jax.jit(module.apply)(variables, *inputs):
        np.testing.assert_allclose(jnp.linalg.norm(embedding, axis=1), 1.0, rtol=1e-6)


def test_heads_that_do_not_divide_the_width_are_named():
    x, mask = jnp.zeros((1, 2, D)), jnp.ones((1, 2), bool)
    with pytest.raises(EndxError, match="encoding width 8 is not divisible by objective.cross_heads=3"):
        CrossEncoder(mean, heads=3).init(jax.random.key(0), x, mask, x, mask)
