"""The residual heads, against their formulas in NumPy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from helpers import TINY, padded, random_params, texts, tower

from endx_jax.batch import Vectors
from endx_jax.models import SIDES, DualEncoder
from endx_jax.models.heads import ResidualHeads

E = 9
BASE = 3 * np.random.default_rng(0).normal(size=(4, E)).astype(np.float32)
FCRR = ResidualHeads(("fcrr",), width=6, filters=3, dropout=0.5)
BOTH = FCRR.clone(names=("fcrr", "convrr"))


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def linear(params, x):
    return x @ params["kernel"] + params["bias"]


def fcrr(params, x):
    return linear(params["output"], np.maximum(linear(params["hidden"], x), 0))


def convrr(params, x):
    """Windows of 5 dimensions, 2 apart: 3 of the 9 dimensions."""
    kernel, bias = params["filters"]["kernel"], params["filters"]["bias"]
    assert kernel.shape == (5, 1, 3)
    found = [np.maximum(x[:, start : start + 5] @ kernel[:, 0] + bias, 0) for start in (0, 2, 4)]
    return linear(params["output"], np.concatenate(found, axis=1))


def apply(heads, params, base=BASE, keys=None):
    return np.asarray(jax.jit(heads.apply)({"params": params}, jnp.asarray(base), keys))


def test_a_head_adds_to_the_unit_vector_and_the_next_to_what_it_gives():
    params = random_params(BOTH, jnp.asarray(BASE))
    assert set(params) == {"fcrr", "convrr"}
    first = unit(unit(BASE) + fcrr(params["fcrr"], unit(BASE)))
    np.testing.assert_allclose(apply(FCRR, {"fcrr": params["fcrr"]}), first, atol=1e-5)
    np.testing.assert_allclose(apply(BOTH, params), unit(first + convrr(params["convrr"], first)), atol=1e-5)


def test_dropout_is_each_rows_own_and_only_where_there_are_keys():
    params = random_params(BOTH, jnp.asarray(BASE))
    keys = jax.random.split(jax.random.key(0, impl="threefry2x32"), 4)
    dropped = apply(BOTH, params, keys=keys)
    assert np.abs(dropped - apply(BOTH, params)).max() > 0.05
    np.testing.assert_allclose(apply(BOTH, params, BASE[1:3], keys[1:3]), dropped[1:3], atol=1e-6)


def test_vectors_enter_a_tower_below_its_head_and_a_side_without_one_is_its_base():
    plain = tower(dataclasses.replace(TINY, layers=1), projection=E)
    model = DualEncoder(plain.clone(head=FCRR), plain)
    tokens = padded(texts((5, 2, 3)), 6)
    params = model.join({side: random_params(model.tower(side), tokens) for side in SIDES})
    assert {place: set(groups) for place, groups in params.items()} == {
        "shared": {"token_embedder", "encoder", "projection"},
        "question": {"head"},
    }
    encode = jax.jit(model.encode, static_argnums=1)
    base = jax.device_get(jax.jit(lambda: {side: model.base(params, side, tokens) for side in SIDES})())
    np.testing.assert_array_equal(*base.values())
    for side in SIDES:
        from_vectors = encode(params, side, Vectors(jnp.asarray(base[side])))
        np.testing.assert_allclose(from_vectors, encode(params, side, tokens), atol=1e-6)
    np.testing.assert_allclose(from_vectors, unit(base["answer"]), atol=1e-6)
    improved = encode(params, "question", Vectors(jnp.asarray(base["question"])))
    np.testing.assert_allclose(improved, apply(FCRR, params["question"]["head"], base["question"]), atol=1e-6)
    assert np.abs(improved - from_vectors).max() > 0.05
