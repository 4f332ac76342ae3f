"""Choice of chunks, packing and loss tile of a run, by the settings and the available memory."""

import dataclasses

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from endx_jax.data.batches import BatchStream
from endx_jax.experiment.model import Model
from endx_jax.models.dropout import example_keys
from endx_jax.parallel.execution import Execution
from endx_jax.parallel.memory import bytes_held, bytes_kept
from endx_jax.parallel.sharding import parameter_paths, rule_of, state_shardings
from endx_jax.pretrained.towers import compute_dtype
from endx_jax.training.checkpoints import abstract

# Largest batch with a dense loss of one array of scores, which compiles and runs faster while they take little memory;
# tile of larger ones.
DENSE_UP_TO, TILE = 2048, 1024
# Tokens of a chunk that keep a device busy; larger chunks are not faster. Measured on CPUs, estimated for accelerators.
BUSY, ACCELERATOR_BUSY = {"cpu": 1 << 14}, 1 << 16


def choose_execution(
    model: Model, mesh: Mesh, stream: BatchStream, steps: int, budget: int, platform: str
) -> tuple[Execution, BatchStream, int | None]:
    """Chooses the execution of a step, and packs the batches for it.

    With `train.tower_chunk=-1`, a device encodes all its rows at once if their activations fit into the budget, and
    otherwise the largest power of two of rows whose activations fit, at least 1.

    Args:
      model: model to train.
      mesh: device mesh.
      stream: batches that are not packed.
      steps: number of steps of the run.
      budget: bytes available to the activations of one device.
      platform: platform of the run's devices, which differs from that of the mesh when `endx plan` plans for a chip.

    Returns:
      The execution, the packed batches, and the estimated bytes of activations; None if `train.tower_chunk` is set.
    """
    settings = model.settings
    size = settings.train.global_batch_size
    chunk = max(settings.train.tower_chunk, 0)
    arrays = settings.objective.score_arrays(settings.data.hard_negatives)
    tile = loss_tile(settings.objective.loss_tile, size, arrays)
    while True:
        execution = Execution(mesh, chunk, tile)
        # Each device encodes packed texts with full parameters, which would undo the gathering by layer of `fsdp`.
        # Chunks need full parameters anyway.
        packed = mesh.shape["fsdp"] == 1 or execution.chunks(size) > 1
        dtype = compute_dtype(settings.model.dtype, model.platform)
        execution = dataclasses.replace(execution, packed=packed and not model.method.frozen_towers, dtype=dtype)
        planned = stream
        if execution.packed:
            planned = stream.without_padding(steps, shards=execution.shards, chunks=execution.chunks(size))
        rows = rows_at_once(execution, size)
        if settings.train.tower_chunk >= 0:
            return execution, planned, None
        kept = activation_bytes(model, execution, planned)
        if kept <= budget or rows == 1:
            return execution, planned, kept
        fitting = max(1, rows * budget // kept)
        if not chunk:
            busy = BUSY.get(platform, ACCELERATOR_BUSY)
            fitting = min(fitting, max(1, busy // max(1, sum(side.places for side in stream.typical().sides))))
        chunk = 1 << (fitting.bit_length() - 1)


def activation_bytes(model: Model, execution: Execution, stream: BatchStream) -> int:
    """Estimates the bytes of activations and gradients on one device, from the shapes of the largest batch.

    The temporaries of the compiled step are within 25 % of this estimate.
    """
    rows = rows_at_once(execution, model.settings.train.global_batch_size)
    batch = (stream.profiles() or [stream.typical()])[-1]
    keys = jax.eval_shape(lambda: example_keys(jax.random.key(0, impl="threefry2x32"), jnp.int32(0), rows))
    chunk = jax.tree.map(lambda x: jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype), batch)
    params = model.abstract_params
    with execution.on_mesh():
        kept = bytes_kept(model.objective.embed, params, (chunk, keys))
    if execution.packed or execution.mesh is None:
        return kept
    # Other devices hold a part of the layers' matrices, which are gathered a layer at a time.
    matrices = {path: leaf for path, leaf in parameter_paths(params).items() if rule_of(path).by_layer}
    whole = sum(leaf.size * leaf.dtype.itemsize for leaf in matrices.values())
    return kept - whole + bytes_held(abstract(matrices, state_shardings(matrices, execution.mesh)))


def rows_at_once(execution: Execution, global_batch_size: int) -> int:
    """Returns the number of pairs that a device encodes at a time."""
    rows = global_batch_size // execution.shards
    return -(-rows // execution.chunks(global_batch_size))


def loss_tile(setting: int, global_batch_size: int, arrays: int = 1) -> int | None:
    """Returns the tile of streamed losses for a value of `objective.loss_tile`; None for dense losses.

    Args:
      setting: the value; -1 to choose.
      global_batch_size: pairs of a batch, B.
      arrays: number of arrays of scores [B, B] of the dense loss.
    """
    if setting == -1:
        setting = 0 if arrays * global_batch_size**2 <= DENSE_UP_TO**2 else TILE
    return setting or None
