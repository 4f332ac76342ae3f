"""The teacher's part above its encoders, against Eqs. 2 to 4 of Wang et al. 2021 written out for one pair at a time."""

import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import random_params

from endx_jax.methods.endx.teacher import CrossEncoder
from endx_jax.models.pooling import mean

B, N, M, D, HEADS = 2, 3, 4, 8, 2
MASKS = np.array([[1, 1, 1], [1, 0, 0]], bool), np.array([[1, 1, 0, 0], [1, 1, 1, 1]], bool)


DRAW = np.random.default_rng(0)
ENCODINGS = [DRAW.normal(size=(B, length, D)).astype(np.float32) for length in (N, M)]


def build(**options):
    """Parameters, and the function that embeds the question's and the answer's encodings."""
    module, (of_question, of_answer) = CrossEncoder(mean, heads=HEADS, **options), MASKS
    params = random_params(module, ENCODINGS[0], of_question, ENCODINGS[1], of_answer)
    return params, jax.jit(lambda q, a: module.apply({"params": params}, q, of_question, a, of_answer))


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
    return (x * refinement["mlp_norm"]["scale"] + refinement["mlp_norm"]["bias"]).mean(axis=0)


@pytest.mark.parametrize("residual", [False, True])
def test_it_is_the_paper_s_equations(residual):
    params, embed = build(residual=residual)
    question, answer = found = embed(*ENCODINGS)
    chex.assert_shape(found, (B, D))
    for row in range(B):
        q, a = (texts[row][mask[row]] for texts, mask in zip(ENCODINGS, MASKS, strict=True))
        expected = [embed_by_hand(params, *texts, residual) for texts in ((a, q), (q, a))]
        np.testing.assert_allclose(question[row], expected[0], atol=2e-6)
        np.testing.assert_allclose(answer[row], expected[1], atol=2e-6)
    after, _ = embed(ENCODINGS[0], -ENCODINGS[1])
    assert np.allclose(question[1], after[1], atol=1e-6) == (not residual)
    assert not np.allclose(question[0], after[0], atol=1e-3)
    noisy = [np.where(mask[:, :, None], own, np.float32(1e3)) for own, mask in zip(ENCODINGS, MASKS, strict=True)]
    chex.assert_trees_all_close(embed(*noisy), found, atol=1e-6)  # values in padding are not read


def test_embeddings_can_have_unit_norm():
    for embedding in build(normalize=True)[1](*ENCODINGS):
        np.testing.assert_allclose(jnp.linalg.norm(embedding, axis=1), 1.0, rtol=1e-6)
