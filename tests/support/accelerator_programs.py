"""Training steps compiled for accelerators that are not here, and what must not be in them."""

import re

import pytest

from endx_jax.experiment.config import resolve
from endx_jax.experiment.train_plan import TrainPlan
from endx_jax.parallel.memory import bytes_held
from endx_jax.planning.compiled import Compiled, compile_step
from endx_jax.planning.programs import SHAPE, collectives, instructions
from endx_jax.planning.runs import RunPairs, plan_run
from endx_jax.planning.topologies import devices_of, missing_compiler, topology_named


def devices_or_skip(name: str) -> list:
    """Devices of a topology; skips the test where their compiler is not installed."""
    topology = topology_named(name)
    missing = missing_compiler(topology.chip)
    if missing:
        pytest.skip(f"{topology.chip.name}: {missing}")
    return devices_of(topology)


def plan_on(config, name: str) -> TrainPlan:
    """The run of a config on a topology, without data."""
    devices = devices_or_skip(name)
    return plan_run(resolve(config), RunPairs(None, "no data"), topology_named(name).chip, devices=devices)


def faults(train_plan: TrainPlan, compiled: Compiled) -> list[str]:
    """Everything that a training step must not have.

    With `fsdp` or `tensor` axes, layers exchange parameters and gradients in the loop over layers, as they should.
    """
    found = float32_products(compiled.text)
    if train_plan.mesh.shape["data"] == train_plan.mesh.size:
        found += collectives_in_loops(compiled.text)
    execution, size = train_plan.execution, train_plan.global_batch_size
    if execution.loss_tile:
        found += batch_squares(compiled.text, size, size // execution.shards)
    if not compiled.fits:
        found.append(f"it does not fit: {compiled.peak} bytes")
    # What a step does not read, such as Adafactor's stand-ins, is not given to it.
    held = bytes_held(train_plan.state)
    if compiled.donated < 0.98 * held:
        found.append(f"{compiled.donated} of {held} bytes of the state are donated")
    return found


def collectives_in_loops(program: str) -> list[str]:
    """Collectives that run once a turn."""
    return [f"{one.kind} in a loop: {one.source}" for one in collectives(program) if one.loops]


def float32_products(program: str, within: str = "/encoder/") -> list[str]:
    """Products of an encoder whose operands are all float32."""
    found = []
    for one in instructions(program):
        wide = all(operand.startswith("f32") for operand in one.operands)
        if one.opcode in ("dot", "convolution") and wide and within in one.source:
            found.append(f"float32 product: {one.source}")
    return found


def batch_squares(program: str, size: int, own: int) -> list[str]:
    """Arrays with a column for each pair of the batch and a row for each of a device's, or of all."""
    found = set()
    for _, _, dimensions in SHAPE.findall(re.sub(r'"[^"]*"', "", program)):
        sizes = [int(n) for n in dimensions.split(",") if n]
        if sizes.count(size) > 1 or (own != size and size in sizes and own in sizes):
            found.add(f"an array of [{dimensions}] for a batch of {size}")
    return sorted(found)


def compiled_on(config, name: str) -> tuple[TrainPlan, Compiled]:
    """The run, and its step compiled for the topology."""
    train_plan = plan_on(config, name)
    return train_plan, compile_step(train_plan)
