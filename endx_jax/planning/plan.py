"""Plan of a run: its work on each chip, and its step and its encoding of texts, compiled for a topology."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractDevice, NamedSharding, PartitionSpec

from endx_jax.batch import Tokens
from endx_jax.experiment.config import Settings
from endx_jax.experiment.step_memory import StepMemory
from endx_jax.experiment.train_plan import TrainPlan
from endx_jax.inference.encode import TextEncoder
from endx_jax.inference.text_batches import Shapes
from endx_jax.parallel.console import working
from endx_jax.parallel.execution import Execution
from endx_jax.parallel.memory import bytes_held
from endx_jax.parallel.sharding import batch_sharding
from endx_jax.planning.chips import USABLE, Chip, chip_of
from endx_jax.planning.compiled import Compiled, compile_traced, compile_what_fits, traced_flops
from endx_jax.planning.machine import MeasuredStep
from endx_jax.planning.runs import RunPairs, plan_run
from endx_jax.planning.topologies import Topology, devices_of, missing_compiler
from endx_jax.settings import require
from endx_jax.training.compilation import abstract_batch

LENGTHS, BATCH_SIZE = (64, 512), 64  # of texts in tokens, and `--batch-size` of `endx encode`
SIDE = "answer"


@dataclasses.dataclass(frozen=True)
class ChipEstimate:
    """Work of one device in a step, before compilation, on one kind of device.

    Times follow from the peak rates of the data sheet, which no program reaches.

    Attributes:
      chip: the kind of device.
      train_plan: the run.
      parameters: bytes of the parameters; exact.
      optimizer: bytes of the optimizer's state and the step number; exact.
      batch: bytes of the batch; exact.
      expected: peak bytes, as training estimates them from shapes.
      model_flops: three times the FLOP of matrix products in the forward pass; twice with adapters, whose base has no
        gradient.
    """

    chip: Chip
    train_plan: TrainPlan
    parameters: int
    optimizer: int
    batch: int
    expected: int
    model_flops: int

    @property
    def seconds(self) -> float:
        """Least seconds of a step: the model's FLOP at the peak rate, or state and batch read and the state written."""
        moved = 2 * (self.parameters + self.optimizer) + self.batch
        return max(self.model_flops / self.chip.flops, moved / self.chip.bandwidth)

    @property
    def fits(self) -> bool:
        """True if the expected peak fits in the memory of one device."""
        return self.expected <= USABLE * self.chip.memory


@dataclasses.dataclass(frozen=True)
class Plan:
    """Plan of a run.

    Attributes:
      texts: its training pairs.
      chips: the run on each chip.
      topology: the devices to plan for; None for any chip.
      compiled: the compiled step, if there is a topology and its compiler is installed.
      missing: reason why it was not compiled; empty otherwise.
      machine: the run on the local devices; None if other devices are planned for.
    """

    texts: RunPairs
    chips: Sequence[ChipEstimate]
    topology: Topology | None = None
    compiled: Compiled | None = None
    missing: str = ""
    machine: MeasuredStep | None = None


def plan_topology(settings: Settings, texts: RunPairs, topology: Topology) -> Plan:
    """Plans a run on a topology, and compiles its step if the compiler is installed.

    Args:
      settings: settings of the run.
      texts: its training pairs.
      topology: the devices; without its compiler, as many devices of JAX represent them.
    """
    missing = missing_compiler(topology.chip)
    devices, chip = jax.devices()[: topology.size] if missing else devices_of(topology), topology.chip
    if missing:
        return Plan(texts, on_chips(settings, texts, [chip], devices), topology, missing=missing)
    train_plan = plan_run(settings, texts, chip, devices=devices)
    with working(f"compiling the step for {topology}"):
        train_plan, compiled = compile_what_fits(train_plan)
    return Plan(texts, [on_chip(train_plan, chip)], topology, compiled)


def on_chips(
    settings: Settings, texts: RunPairs, chips: Iterable[Chip], devices: Sequence[jax.Device] | None = None
) -> list[ChipEstimate]:
    """Returns the run on each chip; traces it once for chips with the same division into chunks.

    Args:
      settings: settings of the run.
      texts: its training pairs.
      chips: chips that the devices may represent.
      devices: devices of the mesh; None for all.
    """
    estimates: dict[tuple[Execution, StepMemory], ChipEstimate] = {}
    planned = []
    for chip in chips:
        train_plan = plan_run(settings, texts, chip, devices=devices)
        division = train_plan.execution, train_plan.choice
        if division not in estimates:
            estimates[division] = on_chip(train_plan, chip)
        planned.append(dataclasses.replace(estimates[division], chip=chip))
    return planned


def on_chip(train_plan: TrainPlan, chip: Chip) -> ChipEstimate:
    """Returns the work of one device in a step, from shapes and the traced step."""
    state, batch = train_plan.state, abstract_batch(train_plan.largest_batch, train_plan.mesh)
    return ChipEstimate(
        chip=chip,
        train_plan=train_plan,
        parameters=bytes_held(state.params),
        optimizer=bytes_held((state.step, state.opt_state)),
        batch=bytes_held(batch),
        expected=train_plan.expected_peak,
        model_flops=(2 if train_plan.model.base else 3) * traced_flops(_forward(train_plan)) // train_plan.mesh.size,
    )


def _forward(train_plan: TrainPlan):
    """Returns the traced objective as a CPU computes it: kernels declare FLOP of padding and other work."""
    mesh = train_plan.mesh.abstract_mesh.update(abstract_device=AbstractDevice("cpu", None, "cpu"))
    execution = dataclasses.replace(train_plan.execution, mesh=mesh)
    params, batch = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (train_plan.state.params, train_plan.largest_batch)
    )
    rng = jax.eval_shape(lambda: jax.random.key(0, impl="threefry2x32"))
    objective = train_plan.model.objective.for_run(execution, 1.0)
    return jax.make_jaxpr(objective)(params, batch, rng, jax.ShapeDtypeStruct((), jnp.int32))


@dataclasses.dataclass(frozen=True)
class Encoding:
    """Encoding of a batch of `texts` texts, each of `length` tokens.

    `model_flops` are the model's FLOP on one device, and `compiled` is the program.
    """

    length: int
    texts: int
    model_flops: int
    compiled: Compiled


def plan_encoding(settings: Settings, devices: Sequence[jax.Device]) -> list[Encoding]:
    """Compiles the encoding of texts of each of `LENGTHS` by the answer tower of a run, in batches of equal tokens."""
    run = plan_run(settings, RunPairs(None), chip_of(devices[0].device_kind), devices=devices)
    mesh, model, longest = run.mesh, run.model.dual_encoder, max(LENGTHS)
    encoder, shapes = TextEncoder(model, {}, mesh), Shapes.of(mesh, longest, BATCH_SIZE)

    def place(tree: Any, sharding: NamedSharding | None) -> Any:
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree)

    params = {"shared": model.tower_params(run.model.abstract_params["dual_encoder"], SIDE)}
    params = place(params, NamedSharding(mesh, PartitionSpec()))
    planned = []
    for length in LENGTHS:
        shape = (shapes.rows(length, BATCH_SIZE * longest), length)
        tokens = jax.eval_shape(lambda ids: Tokens(ids, ids == 0), jax.ShapeDtypeStruct(shape, jnp.int32))
        tokens = place(tokens, batch_sharding(mesh))
        traced = jax.make_jaxpr(lambda params, tokens: model.encode(params, SIDE, tokens))
        flops = traced_flops(traced(*place((params, tokens), None))) // mesh.size
        compiled = compile_traced(encoder._encode.trace(params, SIDE, tokens), (params, tokens))
        require(not compiled.room, f"{shape[0]:,} texts of {length} tokens do not fit in the memory of {devices[0]}")
        planned.append(Encoding(length, shape[0], flops, compiled))
    return planned
