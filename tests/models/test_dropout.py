"""The contract of dropout: example i's mask depends on its own key and on nothing else."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import TINY, padded, random_params, texts, tower
from jax.sharding import NamedSharding, PartitionSpec

from endx_jax.models import dropout as dropout_module
from endx_jax.models.dropout import attention_dropout, dropout, example_keys, fold, position_keys, words

RATE = 0.3
KEYS = example_keys(jax.random.key(5), 0, 8)
LONG = 128  # few shapes, as each is compiled


@functools.partial(jax.jit, static_argnums=1)
def hidden(keys, length: int):
    """Dropout of ones [B, length, 8]."""
    return dropout(jnp.ones((len(keys), length, 8)), position_keys(keys, length), RATE)


@functools.partial(jax.jit, static_argnums=1)
def weights(keys, length: int):
    """Dropout of attention weights that are ones [B, 2, length, length]."""
    return attention_dropout(jnp.ones((len(keys), 2, length, length)), keys, RATE)


def cut(array, length: int):
    """The same positions of a longer array from `hidden` or `weights`."""
    return array[:, :length] if array.ndim == 3 else array[:, :, :length, :length]


@pytest.fixture(params=[hidden, weights], ids=["hidden", "attention"])
def drop(request):
    return lambda keys, length: np.asarray(request.param(keys, length))


def test_a_mask_depends_on_its_key_alone(drop):
    whole = drop(KEYS, 9)
    parts = np.concatenate([drop(KEYS[:4], 9), drop(KEYS[4:], 9)])
    np.testing.assert_array_equal(parts, whole)
    order = np.array([3, 0, 5, 1, 7, 4, 2, 6])  # permuted
    np.testing.assert_array_equal(drop(KEYS[order], 9), drop(KEYS, 9)[order])
    np.testing.assert_array_equal(cut(drop(KEYS, LONG), 9), drop(KEYS, 9))  # padded further
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    sharded = jax.device_put(KEYS, NamedSharding(mesh, PartitionSpec("data")))
    np.testing.assert_array_equal(drop(sharded, 9), drop(KEYS, 9))
    masks = drop(KEYS, 9)
    assert len({mask.tobytes() for mask in masks}) == len(KEYS)


def test_rows_and_heads_of_attention_have_masks_of_their_own():
    mask = np.asarray(weights(KEYS, LONG))[0]
    assert len({row.tobytes() for row in mask.reshape(-1, LONG)}) == 2 * LONG


def test_the_rate_is_kept_and_the_mean_preserved(drop):
    found = drop(KEYS, LONG)
    assert set(np.unique(found)) == {np.float32(0), np.float32(1 / (1 - RATE))}
    deviation = np.sqrt(RATE * (1 - RATE) / found.size)  # of a share of independent draws
    assert abs((found == 0).mean() - RATE) < 4 * deviation
    assert abs(found.mean() - 1) < 4 * deviation / (1 - RATE)


def test_masks_of_neighbours_are_independent():
    """Entries, positions and examples next to each other are both zero as often as independent draws."""
    zero = np.asarray(hidden(example_keys(jax.random.key(1), 0, 64), LONG)) == 0
    for axis in range(zero.ndim):
        for distance in (1, 2, 4):
            count = zero.shape[axis] - distance
            both = zero.take(range(count), axis) & zero.take(range(distance, count + distance), axis)
            assert abs(both.mean() - RATE**2) < 5 * np.sqrt(RATE**2 * (1 - RATE**2) / both.size)


@pytest.mark.parametrize("function", [dropout, attention_dropout])
def test_no_keys_or_no_rate_change_nothing(function):
    x = jnp.ones((8, 2, 3, 3))
    assert function(x, None, RATE) is x
    assert function(x, KEYS, 0.0) is x


def test_keys_follow_key_step_and_row_and_fold_takes_one_number_or_one_a_key():
    """Row i of step s is fold_in(fold_in(key, s), i), however many rows there are."""
    key = jax.random.key(11)
    expected = [jax.random.key_data(jax.random.fold_in(jax.random.fold_in(key, 4), i)) for i in range(3)]
    np.testing.assert_array_equal(jax.random.key_data(example_keys(key, 4, 3)), expected)
    np.testing.assert_array_equal(jax.random.key_data(example_keys(key, 4, 300))[:3], expected)
    one, each = fold(KEYS, 2), fold(KEYS, jnp.full(8, 2))
    np.testing.assert_array_equal(jax.random.key_data(one), jax.random.key_data(each))
    different = jax.random.key_data(fold(KEYS, 3))
    assert not np.any(np.all(different == jax.random.key_data(one), axis=1))


def test_every_place_that_drops_has_keys_of_its_own(monkeypatch):
    used = []

    def record(keys):
        used.append(jax.random.key_data(keys).reshape(-1, 2))
        return words(keys)

    @jax.jit
    def keys_used(params, tokens, keys):
        model.apply(params, tokens, keys)
        return used

    tokens, keys = padded(texts((3,)), 4), example_keys(jax.random.key(0), 0, 1)
    model = tower(dataclasses.replace(TINY, dropout=0.2, attention_dropout=0.3))
    params = {"params": random_params(model, tokens)}
    monkeypatch.setattr(dropout_module, "words", record)
    keys = np.concatenate(keys_used(params, tokens, keys))
    assert len(used) == 1 + 2 * 3
    assert len(np.unique(keys, axis=0)) == len(keys) == 4 * len(used)  # a key of each token, or of each row of weights
