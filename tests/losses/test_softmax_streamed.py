"""The in-batch softmax in tiles, on one device and split over several, against itself with whole arrays of scores."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import one_line_error
from jax.sharding import PartitionSpec
from jaxprs import largest_array

from endx_jax.losses import in_batch_softmax

B, E, K = 24, 5, 2
TILE = 5  # the 24 columns fill four tiles and four fifths of one
MESHES = {1: (("data",), (1,)), 2: (("data",), (2,)), 8: (("data", "fsdp"), (4, 2))}


def drawn_ids() -> dict:
    """Ids of which many are equal, many are known positives, and some are unknown."""
    draw = np.random.default_rng(1)
    ids = {
        "question_id": draw.integers(-1, 15, B),
        "answer_id": draw.integers(-1, 15, B),
        "positive_ids": draw.integers(-1, 30, (B, 3)),
        "hard_negative_ids": draw.integers(-1, 15, (B, K)),
    }
    return {name: value.astype(np.int32) for name, value in ids.items()}


MASKS = drawn_ids() | {"where": np.arange(B) % 5 != 3}
# Values of the same shapes that mask nothing.
NOTHING = {"question_id": -1, "answer_id": -1, "positive_ids": -1, "hard_negative_ids": 99, "where": True}
NO_MASKS = {name: np.full_like(value, NOTHING[name]) for name, value in MASKS.items()}


def drawn(masks: dict, dtype=np.float64) -> dict:
    """The arguments that have a gradient. What is missing or does not count is NaN."""
    draw = np.random.default_rng(0)
    moving = {name: draw.normal(size=(B, E)) for name in ("question", "answer")}
    moving["hard_negatives"] = draw.normal(size=(B, K, E))
    if "hard_negative_ids" in masks:
        moving["hard_negatives"][masks["hard_negative_ids"] < 0] = np.nan
    if "where" in masks:
        for embeddings in moving.values():
            embeddings[~masks["where"]] = np.nan
    return {name: x.astype(dtype) for name, x in moving.items()} | {"temperature": dtype(0.5)}


def loss_of(direction: str, tile: int | None, devices: int | None):
    """The loss and metrics of `drawn` arguments; over several devices the batch is split."""
    axis_name = MESHES[devices][0] if devices else None

    def compute(moving, rest):
        return in_batch_softmax(**moving, **rest, direction=direction, tile=tile, axis_name=axis_name)

    if not devices:
        return compute
    names, sizes = MESHES[devices]
    axis_types = (jax.sharding.AxisType.Auto,) * len(names)
    mesh = jax.make_mesh(sizes, names, axis_types, devices=jax.devices()[:devices])

    def split(moving, rest):
        specs = {name: PartitionSpec() if name == "temperature" else PartitionSpec(names) for name in moving}
        in_specs = (specs, PartitionSpec(names))
        return jax.shard_map(compute, mesh=mesh, in_specs=in_specs, out_specs=PartitionSpec())(moving, rest)

    return split


@functools.cache
def compiled(direction: str, tile: int | None = None, devices: int | None = None):
    return jax.jit(jax.value_and_grad(loss_of(direction, tile, devices), has_aux=True))


def values_and_gradients(compute, masks: dict, dtype=np.float64) -> tuple:
    with jax.enable_x64(True):
        return jax.device_get(compute(drawn(masks, dtype), masks))


def agree(found, expected) -> None:
    """Loss, metrics and all gradients, to 1e-10."""
    chex.assert_trees_all_close(found, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("masked", [(), *((name,) for name in MASKS), ("answer_id", "positive_ids"), tuple(MASKS)])
def test_in_tiles_are_the_same_values_and_gradients(masked):
    masks = NO_MASKS | {name: MASKS[name] for name in masked}
    found = values_and_gradients(compiled("sum", TILE), masks)
    agree(found, values_and_gradients(compiled("sum"), masks))
    (loss, metrics), gradients = found
    assert loss.dtype == np.float64
    assert 0 < metrics["in_batch_accuracy"] < 1
    assert (metrics["masked_fraction"] > 0) == bool({"question_id", "answer_id"} & set(masked))
    assert all(np.abs(gradient).max() > 1e-3 for gradient in gradients.values())


@pytest.mark.parametrize(("devices", "direction"), [(2, "sum"), (8, "mean")])
def test_split_over_devices_are_the_same_values_and_gradients(devices, direction):
    found = values_and_gradients(compiled(direction, TILE, devices), MASKS)
    (loss, metrics), gradients = values_and_gradients(compiled("sum"), MASKS)
    share = {"sum": 1, "mean": 0.5}[direction]
    agree(found, ((share * loss, metrics), jax.tree.map(lambda x: share * x, gradients)))


def test_float32_in_tiles_is_as_exact_as_with_whole_arrays():
    _, exact = values_and_gradients(compiled("sum"), MASKS)

    def errors(tile) -> dict:
        _, gradients = values_and_gradients(compiled("sum", tile), MASKS, dtype=np.float32)
        assert gradients["question"].dtype == np.float32
        return {name: np.abs(gradients[name] - x).max() / np.abs(x).max() for name, x in exact.items()}

    whole, tiled = errors(None), errors(TILE)
    for name, error in tiled.items():
        assert 0 < whole[name] < 1e-6
        assert error <= 2 * whole[name], name


def test_no_array_is_as_large_as_all_scores():
    """Entries of the largest array, at shapes where arrays of scores are larger than any other."""
    size = 128
    shape = jax.ShapeDtypeStruct
    moving = {name: shape((size, E), jnp.float32) for name in ("question", "answer")}
    moving |= {"hard_negatives": shape((size, K, E), jnp.float32), "temperature": shape((), jnp.float32)}
    rest = {name: shape((size, *value.shape[1:]), value.dtype) for name, value in MASKS.items()}

    def largest(tile):
        compute = jax.value_and_grad(loss_of("sum", tile, None), has_aux=True)
        return largest_array(jax.make_jaxpr(compute)(moving, rest))

    assert largest(16) == size * K * E
    assert largest(None) == size * K * size


def test_split_scores_need_tiles():
    with one_line_error("axis_name is given without tile"):
        in_batch_softmax(jnp.zeros((2, 2)), jnp.zeros((2, 2)), axis_name="data")
