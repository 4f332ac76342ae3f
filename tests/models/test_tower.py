"""From tokens to embeddings: the tower's parts and their order."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import ONE_LAYER, padded, random_params, texts, tower

from endx_jax.models import Projection, TokenEmbedder
from endx_jax.models.layout import Padded
from endx_jax.models.pooling import POOLINGS
from endx_jax.parallel.sharding import parameter_paths

TOKENS = padded(texts((9, 4, 1)), 12)


def test_a_projection_is_a_matrix_without_bias_that_keeps_the_scale():
    projection = Projection(5)
    params = random_params(projection, jnp.zeros((1, 16)))
    chex.assert_trees_all_equal_structs(params, {"kernel": 0})
    assert params["kernel"].shape == (16, 5)
    pooled = np.random.default_rng(0).normal(size=(3, 16)).astype(np.float32)
    pooled[2] = 0
    found = jax.jit(projection.apply)({"params": params}, pooled)
    np.testing.assert_allclose(found, np.float64(pooled) @ params["kernel"], atol=1e-6)
    np.testing.assert_array_equal(found[2], 0)
    # Variance 1/D makes outputs as large as inputs.
    params = jax.jit(Projection(200).init)(jax.random.key(0), jnp.zeros((1, 300)))["params"]
    assert np.std(params["kernel"]) == pytest.approx(300**-0.5, rel=0.02)


@pytest.mark.parametrize(
    ("pooling", "projection", "normalize"),
    [("mean", 5, True), ("mean", 0, False), ("first", 5, False), ("first", 0, True)],
)
def test_the_tower_is_its_parts_in_order(pooling, projection, normalize):
    model = tower(ONE_LAYER, pooling=POOLINGS[pooling], projection=projection, normalize=normalize)
    params = random_params(model, TOKENS)

    @jax.jit
    def both(params):
        embedded = model.token_embedder.apply({"params": params["token_embedder"]}, TOKENS.ids)
        encodings = model.encoder.apply({"params": params["encoder"]}, embedded, Padded(TOKENS.mask))
        return model.apply({"params": params}, TOKENS), POOLINGS[pooling](encodings, TOKENS.mask)

    found, expected = both(params)
    expected = np.asarray(expected, np.float64)
    if projection:
        expected = expected @ params["projection"]["kernel"]
    if normalize:
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, expected, atol=1e-6 * np.abs(expected).max())


def test_a_bfloat16_tower_embeds_near_the_float32_one_and_trains_float32_parameters():
    # Unit vectors in 5 dimensions; bfloat16 has 8 significant bits, so components are off by a few 2^-8.
    params = {"params": random_params(tower(ONE_LAYER, projection=5), TOKENS)}
    exact = jax.jit(tower(ONE_LAYER, projection=5).apply)(params, TOKENS)
    found = jax.jit(tower(ONE_LAYER, projection=5, dtype=jnp.bfloat16).apply)(params, TOKENS)
    assert found.dtype == jnp.float32
    error = np.abs(np.asarray(found) - exact).max()
    assert 1e-5 < error < 6 * 2**-8
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    model = tower(ONE_LAYER, projection=5, dtype=jnp.bfloat16)
    gradient = jax.eval_shape(jax.grad(lambda params: jnp.sum(model.apply(params, TOKENS))), params)
    chex.assert_trees_all_equal_shapes_and_dtypes(params, gradient)
    assert {leaf.dtype for leaf in jax.tree.leaves(gradient)} == {jnp.dtype("float32")}


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_token_table_gives_its_rows_and_nan_for_ids_it_lacks(dtype):
    embedder = TokenEmbedder(4, 2, dtype)
    table = jnp.arange(8.0).reshape(4, 2)
    found = jax.jit(embedder.apply)({"params": {"embedding": table}}, jnp.array([[0, 3, 4, -1]]))
    assert found.dtype == dtype
    nan = np.nan
    np.testing.assert_array_equal(np.float32(found), [[[0, 1], [6, 7], [nan, nan], [nan, nan]]])


def test_every_parameter_has_a_gradient_and_that_of_a_zero_embedding_is_finite():
    config = dataclasses.replace(ONE_LAYER, token_types=1, positions=12)
    model = tower(config, projection=5)
    differentiate = jax.jit(jax.value_and_grad(lambda p: jnp.sum(jnp.sin(model.apply({"params": p}, TOKENS)))))
    params = random_params(model, TOKENS)
    gradient = jax.device_get(differentiate(params)[1])
    # Adding one vector to all keys of a row shifts its scores alike, which softmax ignores.
    still = {path for path, leaf in parameter_paths(gradient).items() if abs(leaf).max() < 1e-6}
    assert still == {"encoder/layers_0/attention/key/bias"}
    params["projection"]["kernel"] = np.zeros_like(params["projection"]["kernel"])
    value, gradient = differentiate(params)
    assert value == 0
    chex.assert_tree_all_finite(gradient)
