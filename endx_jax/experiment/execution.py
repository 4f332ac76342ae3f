"""Execution, packing and loss tile of a run, and the memory of its activations by their shapes."""

import dataclasses

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from endx_jax.batch import Batch
from endx_jax.data.batches import BatchStream
from endx_jax.experiment.choices import Choice
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


def make_execution(
    model: Model, mesh: Mesh, stream: BatchStream, steps: int, choice: Choice
) -> tuple[Execution, BatchStream]:
    """Makes the execution of a step, and packs the batches for it.

    Args:
      model: model to train.
      mesh: device mesh.
      stream: batches that are not packed.
      steps: number of steps of the run.
      choice: chunks and rematerialisation.
    """
    settings = model.settings
    size = settings.train.global_batch_size
    arrays = settings.objective.score_arrays(settings.data.hard_negatives)
    execution = Execution(mesh, choice.tower_chunk, loss_tile(settings.objective.loss_tile, size, arrays))
    # Each device encodes packed texts with full parameters, which would undo the gathering by layer of `fsdp`.
    # Chunks need full parameters anyway.
    packed = mesh.shape["fsdp"] == 1 or execution.chunks(size) > 1
    dtype = compute_dtype(settings.model.dtype, model.platform)
    execution = dataclasses.replace(execution, packed=packed and not model.method.frozen_towers, dtype=dtype)
    if execution.packed:
        stream = stream.without_padding(steps, shards=execution.shards, chunks=execution.chunks(size))
    return execution, stream


def activation_bytes(model: Model, mesh: Mesh, execution: Execution, stream: BatchStream) -> int:
    """Estimates the bytes of activations and gradients on one device, from the shapes of the largest batch.

    The temporaries of the compiled step are within 25 % of this estimate.
    """
    rows = rows_at_once(execution, model.settings.train.global_batch_size)
    batch = largest_batch(stream)
    keys = jax.eval_shape(lambda: example_keys(jax.random.key(0, impl="threefry2x32"), jnp.int32(0), rows))
    chunk = jax.tree.map(lambda x: jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype), batch)
    params = model.abstract_params
    # On one device: what a kernel keeps would count once for every device of the mesh.
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh.update(axis_sizes=(1,) * len(mesh.axis_names))):
        kept = bytes_kept(model.objective.embed, params, (chunk, keys))
    if execution.packed:
        return kept
    # Other devices hold a part of the layers' matrices, which are gathered a layer at a time.
    matrices = {path: leaf for path, leaf in parameter_paths(params).items() if rule_of(path).by_layer}
    whole = sum(leaf.size * leaf.dtype.itemsize for leaf in matrices.values())
    return kept - whole + bytes_held(abstract(matrices, state_shardings(matrices, mesh)))


def largest_batch(stream: BatchStream) -> Batch:
    """Returns the shapes of the largest planned batch; without a plan, those of a batch of texts of maximum length."""
    return (stream.profiles() or [stream.widest()])[-1]


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
