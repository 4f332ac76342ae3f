import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import random_params

from endx_jax.models import MultiHopAttention
from endx_jax.models.pooling import POOLINGS

ENCODINGS = np.random.default_rng(0).normal(size=(4, 5, 3)).astype(np.float32)
LENGTHS = (5, 2, 1, 0)
MASK = jnp.asarray(np.arange(5) < np.array(LENGTHS)[:, None])


def test_poolings_are_those_of_each_text_alone():
    found = jax.jit(lambda *given: {name: pool(*given) for name, pool in POOLINGS.items()})(ENCODINGS, MASK)
    for row, length in enumerate(LENGTHS[:3]):
        tokens = ENCODINGS[row, :length]
        np.testing.assert_allclose(found["mean"][row], tokens.sum(axis=0) / length, rtol=1e-6)
        np.testing.assert_array_equal(found["first"][row], tokens[0])
        np.testing.assert_array_equal(found["last"][row], tokens[-1])
        by_position = np.average(tokens, axis=0, weights=range(1, length + 1))
        np.testing.assert_allclose(found["weighted_mean"][row], by_position, rtol=1e-5)
    np.testing.assert_array_equal(found["mean"][3], 0)


@pytest.mark.parametrize("name", POOLINGS)
def test_a_text_without_tokens_is_finite_and_pooling_is_float32_at_least(name):
    pool = jax.jit(POOLINGS[name])
    value, gradient = jax.jit(jax.value_and_grad(lambda x: jnp.sum(pool(x, MASK) ** 2)))(ENCODINGS)
    chex.assert_tree_all_finite((value, gradient))
    # 300 ones: counted in bfloat16, 257 of them would be 256.
    ones, mask = np.ones((1, 300, 2), jnp.bfloat16), np.ones((1, 300), bool)
    pooled = np.asarray(pool(ones, mask))
    assert pooled.dtype == np.float32
    assert (pooled == 1).all()
    with jax.enable_x64(True):
        assert jax.eval_shape(pool, ones.astype(np.float64), mask).dtype == np.float64


def attention(params, encodings):
    """Lin et al. 2017, Eq. 6, of one text without padding: [r, n]."""
    scores = (np.tanh(encodings @ params["hidden_kernel"]) @ params["hop_kernel"]).T
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def test_multi_hop_attention_is_its_equations_text_by_text_finite_and_float32_at_least():
    module = MultiHopAttention(4, 6)
    params = jax.tree.map(lambda leaf: 5 * leaf, random_params(module, ENCODINGS, MASK))  # so that hops differ
    found = jax.jit(module.apply)({"params": params}, ENCODINGS, MASK)
    assert np.ptp(attention(params, ENCODINGS[0]), axis=0).max() > 0.1
    for row, length in enumerate(LENGTHS[:3]):
        encodings = ENCODINGS[row, :length]
        weights = attention(params, encodings)
        np.testing.assert_allclose(found[row], (weights @ encodings).mean(axis=0), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found[3], 0)

    def loss(params, encodings):
        pooled = module.apply({"params": params}, encodings, MASK)
        return jnp.sum(pooled**2), pooled

    half = ENCODINGS.astype(jnp.bfloat16)
    (_, pooled), gradient = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(params, half)
    assert pooled.dtype == jnp.float32
    chex.assert_tree_all_finite(gradient)
    assert min(np.abs(leaf).max() for leaf in jax.tree.leaves(jax.device_get(gradient[0]))) > 1e-4
    with jax.enable_x64(True):
        wide = ENCODINGS.astype(np.float64)
        assert jax.eval_shape(module.apply, {"params": params}, wide, MASK).dtype == np.float64
