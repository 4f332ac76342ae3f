"""How a run's steps are cut up: as its settings say, and where they leave it open, so that the work fits."""

import dataclasses

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from endx_jax.batch import Batch
from endx_jax.data.batches import BatchStream
from endx_jax.experiment.model import Model
from endx_jax.models.dropout import example_keys
from endx_jax.parallel.chunk_size import auto_chunk
from endx_jax.parallel.execution import Execution
from endx_jax.parallel.sharding import batch_shards
from endx_jax.pretrained.towers import compute_dtype

# Up to here a matrix of scores is small change beside the towers, and the dense loss compiles and runs faster.
DENSE_UP_TO, TILE = 2048, 1024
# Tokens of a chunk that keep a device busy: larger ones only take memory. Of a CPU measured, of others a guess.
BUSY, ACCELERATOR_BUSY = {"cpu": 1 << 14}, 1 << 16


def choose_execution(model: Model, mesh: Mesh, stream: BatchStream, memory: int | None = None) -> Execution:
    """How a step of `model` on `mesh` is cut up.

    Args:
      model: what is trained.
      mesh: the devices.
      stream: the batches.
      memory: bytes that a device has, of an accelerator that is planned for; None: of the devices that are here.
    """
    settings = model.settings
    size, chunk = settings.train.global_batch_size, settings.train.tower_chunk
    if chunk == -1:
        keys = jax.eval_shape(lambda: example_keys(jax.random.key(0, impl="threefry2x32"), jnp.int32(0), size))
        typical = stream.typical()
        budget = None if memory is None else memory // 4
        params, shards = model.abstract_params(), batch_shards(mesh)
        chunk = auto_chunk(model.objective.embed, params, (typical, keys), shards=shards, budget=budget)
        busy = BUSY.get(jax.default_backend(), ACCELERATOR_BUSY) if memory is None else ACCELERATOR_BUSY
        chunk = min(chunk, max(1, busy // max(1, tokens_of_a_row(typical))))
    # Methods that compare no rows of a batch have no such setting.
    execution = Execution(mesh, chunk, loss_tile(getattr(settings.objective, "loss_tile", 0), size))
    # Packed texts are encoded on each device by itself, with whole parameters: where `fsdp` splits these so that they
    # are gathered a layer at a time, that would undo it. Chunks have them whole anyway.
    packed = mesh.shape["fsdp"] == 1 or execution.chunks(size) > 1
    dtype = compute_dtype(settings.model.dtype)
    return dataclasses.replace(execution, packed=packed and not model.trains_heads_alone, dtype=dtype)


def tokens_of_a_row(batch: Batch) -> int:
    """Places for tokens in a row of a batch."""
    return sum(side.places for side in batch.sides)


def loss_tile(setting: int, global_batch_size: int) -> int | None:
    """The tile that `objective.loss_tile` asks for: None for dense losses."""
    if setting == -1:
        setting = 0 if global_batch_size <= DENSE_UP_TO else TILE
    return setting or None
