"""Programs beside training steps, compiled for TPUs: losses of a large batch, the encoder, exact search."""

import jax
import jax.numpy as jnp
import pytest
from accelerator_programs import batch_squares, collectives_in_loops, devices_or_skip, float32_products
from jax.sharding import NamedSharding, PartitionSpec

from endx_jax import losses
from endx_jax.cli import train
from endx_jax.experiment.config import resolve
from endx_jax.losses.geometry import TERMS
from endx_jax.parallel import MeshSettings, make_mesh
from endx_jax.parallel.execution import Execution
from endx_jax.planning.plan import BATCH_SIZE, LENGTHS, plan_encoding
from endx_jax.planning.programs import collectives
from endx_jax.ranking import tiles

BATCH, TILE, WIDTH = 65_536, 128, 768
KEPT = 100


def arrays(mesh, spec, *shapes, dtype=jnp.float32):
    return [jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec)) for shape in shapes]


def softmax(dual, _, **cut):
    return losses.in_batch_softmax(*dual, **cut)[0]


def alignment(dual, cross, **cut):
    return losses.geometry_alignment(dual, cross, weights=dict.fromkeys(TERMS, 1.0), **cut)[0]


@pytest.mark.parametrize("loss", [softmax, pytest.param(alignment, marks=pytest.mark.slow)])
def test_losses_of_65536_pairs_on_64_chips(loss):
    mesh = make_mesh(MeshSettings(), devices_or_skip("v5e:8x8"))
    execution = Execution(mesh, loss_tile=TILE)

    def whole(dual, cross):
        def of_shard(_, rows, axis_name):
            return loss(*rows, tile=TILE, axis_name=axis_name)

        return execution.reduce_rows(of_shard, None, (dual, cross))

    pair = arrays(mesh, PartitionSpec(("data", "fsdp")), *[(BATCH, WIDTH)] * 2)
    compiled = jax.jit(jax.value_and_grad(whole)).lower(pair, pair).compile()
    text = compiled.as_text()
    assert collectives_in_loops(text) == []
    assert batch_squares(text, BATCH, BATCH // mesh.size) == []
    # Gathered columns, and of the student's their gradients; each twice, as the compiler lays them out.
    gathered = {softmax: 2, alignment: 6}[loss] * BATCH * WIDTH * 4
    assert compiled.memory_analysis().temp_size_in_bytes < 2 * gathered


def test_exact_search():
    mesh, tile = make_mesh(MeshSettings(), devices_or_skip("v5e:2x2")), tiles.LARGE_TILE
    rows, whole = PartitionSpec(mesh.axis_names), PartitionSpec()
    questions, start, count = (
        *arrays(mesh, whole, (1, tile.questions, WIDTH)),
        *arrays(mesh, whole, (), (), dtype=jnp.int32),
    )
    (block,) = arrays(mesh, rows, (2 * mesh.size * tile.candidates, WIDTH), dtype=jnp.bfloat16)
    best = tiles.empty_best.eval_shape(mesh.size, tile.questions, KEPT, NamedSharding(mesh, rows))
    best = jax.tree.map(lambda x: arrays(mesh, rows, x.shape, dtype=x.dtype)[0], best)
    merge = tiles.merge_block.lower(best, questions, tiles.Block(block, None, None), start, count, mesh, tile)
    merged = merge.compile()
    assert collectives(merged.as_text()) == []
    # A tile of scores and its candidates as float32, and not those of the block; each of them twice.
    a_tile = 4 * tile.candidates * (tile.questions + WIDTH)
    assert merged.memory_analysis().temp_size_in_bytes < 2 * a_tile

    text = tiles.merge_devices.lower(best, mesh).compile().as_text()
    assert {(one.kind, one.loops) for one in collectives(text)} == {("all-gather", 0)}


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["minilm", "t5:base,sde"])
@pytest.mark.parametrize("topology", ["v5e:2x2", "h200:1"])
def test_encoders(recipe, topology):
    config, *_ = train.parse_arguments([f"--config={recipe}"])
    devices = devices_or_skip(topology)
    for one in plan_encoding(resolve(config), devices):
        assert one.length * one.texts == BATCH_SIZE * max(LENGTHS)
        assert float32_products(one.compiled.text) == []
        found = [(one.kind, one.loops) for one in one.compiled.collectives]
        assert found == [("all-gather", 0)] * (len(devices) > 1)
