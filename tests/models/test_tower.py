"""From tokens to embeddings: the tower's parts and their order."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import TINY, padded, random_params, texts, tower

from endx_jax.models import Projection, TokenEmbedder
from endx_jax.models.layout import Padded
from endx_jax.models.pooling import POOLINGS
from endx_jax.parallel.sharding import parameter_paths

TOKENS = padded(texts((9, 4, 1)), 12)
ONE_LAYER = dataclasses.replace(TINY, layers=1)


def test_a_projection_is_a_matrix_without_bias_that_keeps_the_scale():
    projection = Projection(5)
    params = random_params(projection, jnp.zeros((1, 16)))
    chex.assert_trees_all_equal_structs(params, {"kernel": 0})
    assert params["kernel"].shape == (16, 5)
    pooled = jax.random.normal(jax.random.key(0), (3, 16))
    expected = np.asarray(pooled, np.float64) @ params["kernel"]
    np.testing.assert_allclose(projection.apply({"params": params}, pooled), expected, atol=1e-6)
    np.testing.assert_array_equal(projection.apply({"params": params}, jnp.zeros((1, 16))), np.zeros((1, 5)))
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
    encodings = encode(params)
    expected = np.asarray(POOLINGS[pooling](encodings, TOKENS.mask), np.float64)
    if projection:
        expected = expected @ params["projection"]["kernel"]
    if normalize:
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    found = jax.jit(model.apply)({"params": params}, TOKENS)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, expected, atol=1e-6 * np.abs(expected).max())


@jax.jit
def encode(params):
    model = tower(ONE_LAYER)
    embedded = model.token_embedder.apply({"params": params["token_embedder"]}, TOKENS.ids)
    return model.encoder.apply({"params": params["encoder"]}, embedded, Padded(TOKENS.mask))


def test_a_bfloat16_tower_embeds_near_the_float32_one_and_trains_float32_parameters():
    # Unit vectors in 5 dimensions; bfloat16 has 8 significant bits, so components are off by a few 2^-8.
    params = {"params": random_params(tower(ONE_LAYER, projection=5), TOKENS)}
    exact = jax.jit(tower(ONE_LAYER, projection=5).apply)(params, TOKENS)
    found = jax.jit(tower(ONE_LAYER, projection=5, dtype=jnp.bfloat16).apply)(params, TOKENS)
    assert found.dtype == jnp.float32
    error = np.abs(found - exact).max()
    assert 1e-5 < error < 6 * 2**-8
    np.testing.assert_allclose(jnp.linalg.norm(found, axis=1), 1, atol=1e-6)
    model = tower(projection=5, dtype=jnp.bfloat16)
    params = random_params(model, TOKENS)
    gradient = jax.eval_shape(jax.grad(lambda p: jnp.sum(model.apply({"params": p}, TOKENS))), params)
    chex.assert_trees_all_equal_shapes_and_dtypes(params, gradient)
    assert {leaf.dtype for leaf in jax.tree.leaves(gradient)} == {jnp.dtype("float32")}


def test_the_gradient_at_a_zero_embedding_is_finite():
    model = tower(ONE_LAYER, projection=5)
    params = random_params(model, TOKENS)
    params["projection"]["kernel"] = np.zeros_like(params["projection"]["kernel"])
    value, gradient = jax.jit(jax.value_and_grad(lambda p: jnp.sum(model.apply({"params": p}, TOKENS))))(params)
    assert value == 0
    chex.assert_tree_all_finite(gradient)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_token_table_gives_its_rows_and_nan_for_ids_it_lacks(dtype):
    embedder = TokenEmbedder(4, 2, dtype)
    table = jnp.arange(8.0).reshape(4, 2)
    found = embedder.apply({"params": {"embedding": table}}, jnp.array([[0, 3, 4, -1]]))
    assert found.dtype == dtype
    nan = np.nan
    np.testing.assert_array_equal(found.astype(jnp.float32), [[[0, 1], [6, 7], [nan, nan], [nan, nan]]])


def test_every_parameter_has_a_gradient():
    config = dataclasses.replace(ONE_LAYER, token_types=1, positions=12)
    model = tower(config, projection=5)
    params = random_params(model, TOKENS)
    gradient = jax.jit(jax.grad(lambda p: jnp.sum(jnp.sin(model.apply({"params": p}, TOKENS)))))(params)
    # Adding one vector to all keys of a row shifts its scores alike, which softmax ignores.
    still = {path for path, leaf in parameter_paths(gradient).items() if abs(leaf).max() < 1e-6}
    assert still == {"encoder/layers_0/attention/key/bias"}
