"""Compilation of the training step ahead of time, and the memory of its programs."""

import concurrent.futures
import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax

from endx_jax.batch import Batch
from endx_jax.parallel.environment import cores
from endx_jax.parallel.sharding import batch_sharding
from endx_jax.training.step import Stacked, Step, TrainState

Call = TypeVar("Call", bound=Batch | Stacked)


@dataclasses.dataclass(frozen=True)
class CompiledStep:
    """Training step with programs that are compiled ahead of time, by `shape_of` of their batch.

    `fallback` is the step for other shapes, which compiles at the first call with one; `refused` the bytes of a program
    for which the compiler finds no room on one device, 0 if it compiled all.
    """

    programs: Mapping[Any, Callable]
    fallback: Step
    refused: int = 0

    def bytes(self) -> int:
        """Returns the memory of the largest program on one device in bytes; 0 without programs."""
        return max(self.refused, *map(program_bytes, self.programs.values()), 0)

    def __call__(self, state: TrainState, batch: Batch | Stacked) -> tuple[TrainState, dict[str, jax.Array]]:
        """Runs a training step on a batch, or one training step on each of several stacked batches."""
        return self.programs.get(shape_of(batch), self.fallback)(state, batch)


def compile_ahead(
    train_step: jax.stages.Wrapped, state: TrainState, batches: Sequence[Batch | Stacked], mesh: jax.sharding.Mesh
) -> CompiledStep:
    """Compiles a step for global batches of shapes in parallel; `state` holds arrays, or shapes with shardings."""

    def compile_one(batch: Batch | Stacked):
        return train_step.lower(state, abstract_batch(batch, mesh)).compile()

    try:
        with concurrent.futures.ThreadPoolExecutor(cores()) as pool:
            programs = dict(zip(map(shape_of, batches), pool.map(compile_one, batches), strict=True))
    except jax.errors.JaxRuntimeError as refused:
        return CompiledStep({}, train_step, used_and_limit(refused)[0])
    return CompiledStep(programs, train_step)


# Messages of a TPU's compiler for a program that does not fit: "Used 27.36G of 15.75G hbm", or without its arguments
# "HLO temporaries (25.91G) exceeds available HBM (15.75G)".
NO_ROOM = re.compile(
    r"(?:Used |temporaries \()([\d.]+)([KMGT]?)(?: of |\) exceeds available HBM \()([\d.]+)([KMGT]?)(?: hbm|\))"
)
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def used_and_limit(refused: jax.errors.JaxRuntimeError) -> tuple[int, int]:
    """Returns the bytes of a program that the compiler refuses, and those of the device; raises any other error."""
    found = NO_ROOM.search(str(refused))
    if not found:
        raise refused
    used, limit = (int(float(found[n]) * UNITS[found[n + 1]]) for n in (1, 3))
    return used, limit


def program_bytes(program) -> int:
    """Returns the memory of a compiled program on one device in bytes: arguments, temporaries and results."""
    memory = program.memory_analysis()
    results = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return memory.argument_size_in_bytes + memory.temp_size_in_bytes + results


def abstract_batch(batch: Call, mesh: jax.sharding.Mesh) -> Call:
    """Adds shardings to the shapes of a global batch, or of stacked ones."""
    rows = batch_sharding(mesh, axis=int(isinstance(batch, Stacked)))
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=rows), batch)


def shape_of(batch: Batch | Stacked):
    """Returns the key of a batch's compiled program: its tree structure, which includes packings, and its shapes."""
    leaves, structure = jax.tree.flatten(batch)
    return structure, tuple(leaf.shape for leaf in leaves)
