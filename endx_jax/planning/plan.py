"""Plan of a run: its work on each chip, its compiled step, and what could be changed where that does not fit."""

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

# Share of a chip's memory that is left to a program: the rest is the runtime's, and lost between buffers.
USABLE = 0.92
# A change in a run: dotted names of settings to values.
Change = dict[str, object]
# Settings that change what is learned.
CHANGES_RESULTS = ("optimizer.name", "model.dtype")


@dataclasses.dataclass(frozen=True)
class Work:
    """One device's part of a step, before anything is compiled.

    Attributes:
      subject: the run.
      parameters: bytes of all of them; exact.
      optimizer: bytes of its state, and of the step's number; exact.
      batch: bytes, as it is given; exact.
      expected: bytes at the peak, in training's own estimate from shapes.
      flops: of matrix products, what is computed again included.
      model_flops: three times those of the forward pass.
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
    """A run on one kind of device. Seconds are those of a data sheet at its best, which no program reaches.

    Attributes:
      chip: which.
      work: of one device.
    """

    chip: Chip
    work: Work

    @property
    def compute(self) -> float:
        """Seconds of the matrix products, at the bfloat16 peak."""
        return self.work.flops / self.chip.flops

    @property
    def memory(self) -> float:
        """Seconds to read the state and the batch once, and write the state once."""
        state = self.work.parameters + self.work.optimizer
        return (2 * state + self.work.batch) / self.chip.bandwidth

    @property
    def seconds(self) -> float:
        """Seconds that a step takes at least."""
        return max(self.compute, self.memory)

    @property
    def fits(self) -> bool:
        """Whether one device can hold what training expects."""
        return self.work.expected <= USABLE * self.chip.memory


@dataclasses.dataclass(frozen=True)
class Remedy:
    """The same run with something changed, compiled.

    Attributes:
      change: what.
      compiled: the step.
      fits: whether a device can hold it.
    """

    change: Change
    compiled: Compiled
    fits: bool

    @property
    def changes_results(self) -> bool:
        """Whether another model would be learned."""
        return any(name in CHANGES_RESULTS for name in self.change)


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a run would need.

    Attributes:
      texts: what is known of its texts.
      chips: the run on each.
      topology: the devices that it is planned for; None: so many of any chip.
      compiled: the step, where there is a topology and its compiler is here.
      missing: why it was not compiled; empty otherwise.
      remedies: where it does not fit.
      machine: the run on the devices that are here; None where others are planned for.
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
        """Whether a device of the topology can hold the compiled step."""
        return self.compiled is None or self.topology is None or fits(self.compiled, self.topology.chip)


def fits(compiled: Compiled, chip: Chip) -> bool:
    """Returns true if a chip can hold a step: if its compiler said so, or by its data sheet."""
    return not compiled.room and (chip.platform == "tpu" or compiled.peak <= USABLE * chip.memory)


def plan(settings: Settings, texts: Texts, chips: Sequence[Chip], *, here: bool = False) -> Plan:
    """Plans a run on all devices of JAX, whichever chips these stand for; nothing is compiled for those.

    Args:
      settings: of the run.
      texts: what is known of its texts.
      chips: what the devices may be.
      here: whether to compile the step for the devices that are here, too.

    Raises:
      EndxError: for what training would refuse.
    """
    found = on_chips(settings, texts, chips)
    return Plan(texts, found, machine=plan_machine(settings, texts) if here else None)


def plan_topology(settings: Settings, texts: Texts, topology: Topology) -> Plan:
    """Plans a run on a topology, and compiles its step where the compiler is installed.

    Args:
      settings: of the run.
      texts: what is known of its texts.
      topology: the devices; where the compiler is not installed, as many of JAX stand for them.

    Raises:
      EndxError: for what training or the compiler would refuse.
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
    """Returns the run on each chip; traced once for all on which its steps are divided alike."""
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
    """Returns one device's part of a step, from shapes and the traced step."""
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
    """Returns changes that may help a run that does not fit; each is compiled."""
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
    """The run with a change; None where training would refuse it."""
    about = ", ".join(f"{name}={value}" for name, value in change.items())
    try:
        outline = outline_run(changed(settings, change), texts, devices=devices)
        with working(f"it does not fit; compiling with {about}"):
            compiled = compile_step(outline.on(topology.chip))
    except EndxError:
        return None
    return Remedy(change, compiled, fits(compiled, topology.chip))
