"""What the streamed losses cost when the batch is split over devices, read from the compiled programs."""

import functools

import jax
import jax.numpy as jnp
import pytest
from helpers import without_metrics
from jax.sharding import PartitionSpec

from endx_jax import losses
from endx_jax.losses import geometry_alignment
from endx_jax.losses.geometry import TERMS
from endx_jax.planning.programs import collectives

in_batch_softmax = without_metrics(losses.in_batch_softmax)

ROWS, WIDTH, TILE = 512, 32, 256  # on each device


def softmax(dual, cross, **cut):
    del cross
    return in_batch_softmax(*dual, **cut)


def alignment(dual, cross, **cut):
    return geometry_alignment(dual, cross, weights=dict.fromkeys(TERMS, 1.0), **cut)[0]


# Of arrays of the whole batch, each device holds the gathered columns and, of the student's, their gradients.
GATHERED = {softmax: 2, alignment: 6}


@functools.cache
def compiled(loss, devices):
    mesh = jax.make_mesh((devices,), ("data",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:devices])
    cut = jax.shard_map(
        functools.partial(loss, tile=TILE, axis_name="data"),
        mesh=mesh,
        in_specs=PartitionSpec("data"),
        out_specs=PartitionSpec(),
    )
    like = jax.ShapeDtypeStruct((devices * ROWS, WIDTH), jnp.float32)
    quickly = {"xla_backend_optimization_level": 0}
    return jax.jit(jax.value_and_grad(cut)).lower((like, like), (like, like)).compile(compiler_options=quickly)


@pytest.mark.parametrize("loss", GATHERED)
def test_no_collective_is_in_a_loop_and_memory_grows_by_the_gathered_embeddings_alone(loss):
    found = collectives(compiled(loss, 8).as_text())
    assert {collective.kind for collective in found} == {"all-gather", "reduce-scatter", "all-reduce"}
    assert {(collective.loops, collective.times) for collective in found} == {(0, 1)}

    def beside_the_gathered(devices):
        array = devices * ROWS * WIDTH * 4
        return compiled(loss, devices).memory_analysis().temp_size_in_bytes - GATHERED[loss] * array

    two, eight = beside_the_gathered(2), beside_the_gathered(8)
    assert two > TILE * TILE * 4, "more was taken off than the gathered embeddings"
    assert eight < 1.1 * two
