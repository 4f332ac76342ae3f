"""Plan of a run: its work on each chip, its compiled step, and changes that may help if the step does not fit."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from endx_jax.errors import EndxError
from endx_jax.experiment.config import Settings
from endx_jax.parallel.console import working
from endx_jax.parallel.execution import Execution
from endx_jax.parallel.memory import bytes_held
from endx_jax.planning.chips import Chip
from endx_jax.planning.compiled import Compiled, compile_step
from endx_jax.planning.flops import traced_flops
from endx_jax.planning.machine import Machine, plan_machine
from endx_jax.planning.subject import Outline, Subject, Texts, outline_run
from endx_jax.planning.topologies import Topology, devices_of, missing_compiler
from endx_jax.training.step import abstract_batch

# Share of a chip's memory for programs; the rest is for the runtime and fragmentation.
USABLE = 0.92
# Change of a run: values by dotted names of settings.
Change = dict[str, object]
# Settings that change what is learned.
CHANGES_RESULTS = ("optimizer.name", "model.dtype")


@dataclasses.dataclass(frozen=True)
class Work:
    """Work of one device in a step, before compilation.

    Attributes:
      subject: the run.
      parameters: bytes of the parameters; exact.
      optimizer: bytes of the optimizer's state and the step number; exact.
      batch: bytes of the batch; exact.
      expected: peak bytes, as training estimates them from shapes.
      flops: FLOP of matrix products, recomputation included.
      model_flops: three times the FLOP of the forward pass.
    """

    subject: Subject
    parameters: int
    optimizer: int
    batch: int
    expected: int
    flops: int
    model_flops: int


@dataclasses.dataclass(frozen=True)
class OnChip:
    """Run on one kind of device. Times follow from the peak rates of its data sheet, which no program reaches.

    Attributes:
      chip: the kind of device.
      work: work of one device.
    """

    chip: Chip
    work: Work

    @property
    def compute(self) -> float:
        """Seconds of the matrix products at the bfloat16 peak rate."""
        return self.work.flops / self.chip.flops

    @property
    def memory(self) -> float:
        """Seconds to read the state and the batch once, and write the state once."""
        state = self.work.parameters + self.work.optimizer
        return (2 * state + self.work.batch) / self.chip.bandwidth

    @property
    def seconds(self) -> float:
        """Lower bound of the time of a step, in seconds."""
        return max(self.compute, self.memory)

    @property
    def fits(self) -> bool:
        """True if the expected peak fits in the memory of one device."""
        return self.work.expected <= USABLE * self.chip.memory


@dataclasses.dataclass(frozen=True)
class Remedy:
    """Compiled step of a run with changed settings.

    Attributes:
      change: the changed settings.
      compiled: the step.
      fits: true if it fits in a device's memory.
    """

    change: Change
    compiled: Compiled
    fits: bool

    @property
    def changes_results(self) -> bool:
        """True if the change affects the trained model."""
        return any(name in CHANGES_RESULTS for name in self.change)


@dataclasses.dataclass(frozen=True)
class Plan:
    """Plan of a run.

    Attributes:
      texts: its training pairs.
      chips: the run on each chip.
      topology: the devices to plan for; None for any chip.
      compiled: the compiled step, if there is a topology and its compiler is installed.
      missing: reason why it was not compiled; empty otherwise.
      remedies: changes that were compiled because the step does not fit.
      machine: the run on the local devices; None if other devices are planned for.
    """

    texts: Texts
    chips: tuple[OnChip, ...]
    topology: Topology | None = None
    compiled: Compiled | None = None
    missing: str = ""
    remedies: tuple[Remedy, ...] = ()
    machine: Machine | None = None

    @property
    def fits(self) -> bool:
        """True if the compiled step fits in the memory of a device of the topology."""
        return self.compiled is None or self.topology is None or fits(self.compiled, self.topology.chip)


def fits(compiled: Compiled, chip: Chip) -> bool:
    """Returns true if a step fits in a chip's memory, by its compiler or its data sheet."""
    return not compiled.room and (chip.platform == "tpu" or compiled.peak <= USABLE * chip.memory)


def plan(settings: Settings, texts: Texts, chips: Sequence[Chip], *, here: bool = False) -> Plan:
    """Plans a run on all devices of JAX, as each of several chips, without compiling for these.

    Args:
      settings: settings of the run.
      texts: its training pairs.
      chips: chips that the devices may represent.
      here: compile the step for the local devices too.

    Raises:
      EndxError: training would refuse the settings.
    """
    found = on_chips(settings, texts, chips)
    return Plan(texts, found, machine=plan_machine(settings, texts) if here else None)


def plan_topology(settings: Settings, texts: Texts, topology: Topology) -> Plan:
    """Plans a run on a topology, and compiles its step if the compiler is installed.

    Args:
      settings: settings of the run.
      texts: its training pairs.
      topology: the devices; without its compiler, as many devices of JAX represent them.

    Raises:
      EndxError: training or the compiler would refuse the run.
    """
    chip, missing = topology.chip, missing_compiler(topology.chip)
    if missing:
        return Plan(texts, on_chips(settings, texts, [chip], jax.devices()[: topology.size]), topology, missing=missing)
    devices = devices_of(topology)
    found = on_chips(settings, texts, [chip], devices)
    subject = found[0].work.subject
    with working(f"compiling the step for {topology}"):
        compiled = compile_step(subject)
    planned = Plan(texts, found, topology, compiled)
    if planned.fits:
        return planned
    remedies = [remedy for change in changes(subject) if (remedy := _try(settings, texts, topology, devices, change))]
    ranked = sorted(remedies, key=lambda one: (not one.fits, one.changes_results, one.compiled.peak))
    return dataclasses.replace(planned, remedies=tuple(ranked))


def on_chips(
    settings: Settings, texts: Texts, chips: Sequence[Chip], devices: Sequence[jax.Device] | None = None
) -> tuple[OnChip, ...]:
    """Returns the run on each chip; traces the step once for chips with the same division into chunks."""
    known: dict[Execution, Work] = {}
    outlines: dict[str, Outline] = {}
    found = []
    for chip in chips:
        if chip.platform not in outlines:
            outlines[chip.platform] = outline_run(settings, texts, devices=devices, platform=chip.platform)
        subject = outlines[chip.platform].on(chip)
        execution = subject.train_plan.execution
        if execution not in known:
            known[execution] = work_of(subject)
        found.append(OnChip(chip, known[execution]))
    return tuple(found)


def work_of(subject: Subject) -> Work:
    """Returns the work of one device in a step, from shapes and the traced step."""
    state, batch, devices = subject.step.state, abstract_batch(subject.batch, subject.mesh), subject.mesh.size
    rng = jax.eval_shape(lambda: jax.random.key(0, impl="threefry2x32"))
    forward = jax.make_jaxpr(subject.train_plan.objective)(
        state.params, batch, rng, jax.ShapeDtypeStruct((), jnp.int32)
    )
    return Work(
        subject=subject,
        parameters=bytes_held(state.params),
        optimizer=bytes_held((state.step, state.opt_state)),
        batch=bytes_held(batch),
        expected=subject.train_plan.expected_peak(subject.model),
        flops=traced_flops(subject.trace().jaxpr) // devices,
        model_flops=3 * traced_flops(forward) // devices,
    )


def changes(subject: Subject) -> list[Change]:
    """Returns changes that may make a run fit, for compilation."""
    settings, execution, mesh = subject.model.settings, subject.train_plan.execution, subject.mesh
    size, rows = settings.train.global_batch_size, settings.train.global_batch_size // execution.shards
    split = mesh.size // mesh.shape["tensor"]
    found: list[Change] = []
    if settings.model.remat != "full" and settings.model.encoder != "none":
        found.append({"model.remat": "full"})
    if rows > 1:
        found.append({"train.tower_chunk": max(1, (execution.tower_chunk or rows) // 4)})
    if getattr(settings.objective, "loss_tile", None) is not None and execution.loss_tile is None and size > 512:
        found.append({"objective.loss_tile": 512})
    if mesh.shape["fsdp"] < split:
        found.append({"mesh.data": 1, "mesh.fsdp": split})
    if settings.optimizer.name == "adamw":
        found.append({"optimizer.name": "adafactor"})
    if len(found) > 1:
        found.append({name: value for change in found for name, value in change.items()})
    return found


def changed(settings: Settings, change: Change) -> Settings:
    """Returns the settings with some of them changed."""
    for name, value in change.items():
        section, _, key = name.partition(".")
        settings = dataclasses.replace(
            settings, **{section: dataclasses.replace(getattr(settings, section), **{key: value})}
        )
    return settings


def _try(
    settings: Settings, texts: Texts, topology: Topology, devices: Sequence[jax.Device], change: Change
) -> Remedy | None:
    """Compiles the run with a change; returns None if training would refuse it."""
    about = ", ".join(f"{name}={value}" for name, value in change.items())
    try:
        outline = outline_run(changed(settings, change), texts, devices=devices)
        with working(f"it does not fit; compiling with {about}"):
            compiled = compile_step(outline.on(topology.chip))
    except EndxError:
        return None
    return Remedy(change, compiled, fits(compiled, topology.chip))
