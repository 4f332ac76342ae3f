"""Texts end to end: places, keys of dropout, what does not fit, and how much is computed; see test_invariance.py."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import padded, random_params, texts, tower
from jaxprs import equations
from packed_texts import BERT, EXACT, KEYS, LENGTH, LENGTHS, SPARE, TOKENS

from endx_jax.batch import Packing
from endx_jax.models.layout import lay_out


def packed(tokens, packing):
    return dataclasses.replace(tokens, packing=packing)


TOWER = tower(BERT)
PARAMS = {"params": random_params(TOWER, TOKENS)}
COMPILED = jax.jit(TOWER.apply)


def embed(tokens):
    return COMPILED(PARAMS, tokens)


@pytest.mark.parametrize("lengths", [LENGTHS, (1,) * 8, (6,) * 8, (12, 12, 12, 1, 1, 1, 1, 1)], ids=str)
def test_one_packing_serves_all_texts_that_fit(lengths):
    tokens = padded(texts(lengths, seed=1), LENGTH)
    np.testing.assert_allclose(embed(packed(tokens, SPARE)), embed(tokens), atol=1e-6)


def test_values_in_padding_are_not_read():
    tokens = packed(TOKENS, SPARE)
    rubbish = tokens.replace(ids=jnp.where(tokens.mask, tokens.ids, 49))
    np.testing.assert_array_equal(embed(rubbish), embed(tokens))


@pytest.mark.parametrize(
    ("packing", "lost"),
    [
        (Packing(42, ((8, 12),)), []),
        (Packing(41, ((8, 12),)), [12]),  # one token too many
        (Packing(29, ((8, 12),)), [9, 12]),  # the last two texts, the first of which begins in time
        (Packing(48, ((8, 11),)), [12]),
        (Packing(48, ((6, 5), (2, 9))), [7, 12]),  # each wider than its own bucket, but not all that are wider than 5
    ],
    ids=str,
)
def test_a_text_that_does_not_fit_is_nan_and_never_cut(packing, lost):

    @jax.jit
    def padded_again(tokens):
        ids, layout = lay_out(tokens)
        return layout.pad(ids[:, :, None].astype(jnp.float32))

    found, expected = np.asarray(padded_again(packed(TOKENS, packing))), np.asarray(TOKENS.ids)[:, :, None]
    for row, length in enumerate(LENGTHS):
        if length in lost:
            assert np.isnan(found[row, :length]).all(), length
        else:
            np.testing.assert_array_equal(found[row, :length], expected[row, :length])
        np.testing.assert_array_equal(found[row, length:], 0)


def products(tokens):
    """Multiplications in the gradient of the BERT tower: of products with weights, and of products within texts."""
    work = {0: 0, 2: 0}
    jaxpr = jax.make_jaxpr(jax.grad(lambda params: jnp.sum(jnp.sin(TOWER.apply(params, tokens, KEYS)))))(PARAMS)
    for equation in equations(jaxpr):
        if equation.primitive.name == "dot_general":
            (contracted, _), (batched, _) = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            summed = math.prod(left[axis] for axis in contracted)
            work[len(batched)] = work.get(len(batched), 0) + summed * math.prod(equation.outvars[0].aval.shape)
    return work[0], work[2]  # attention has two leading axes, texts and heads


def test_weights_meet_each_token_once_and_attention_stays_within_buckets():
    weights, attention = products(TOKENS)
    packed_weights, packed_attention = products(packed(TOKENS, EXACT))
    assert weights > 0
    assert packed_weights * (8 * LENGTH) == weights * 42
    within = 2 * 1**2 + 3 * 4**2 + 2 * 9**2 + 1 * 12**2
    assert packed_attention * (8 * LENGTH**2) == attention * within
