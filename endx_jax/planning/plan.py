"""The whole plan of a run: on every chip that is asked for, and what could be changed where it does not fit."""

import dataclasses
from collections.abc import Sequence

from endx_jax.errors import EndxError
from endx_jax.experiment.config import Settings
from endx_jax.parallel.execution import Execution
from endx_jax.planning.chips import Chip
from endx_jax.planning.compiled import Compiled, compile_step
from endx_jax.planning.estimate import Estimate, estimate
from endx_jax.planning.machine import Machine, plan_machine
from endx_jax.planning.roofline import Roofline, fits, roofline
from endx_jax.planning.subject import Outline, Subject, Texts, outline_run

# A change in a run: dotted names of settings to values.
Change = dict[str, object]
# Settings that, when changed, change what is learned too.
CHANGES_RESULTS = ("optimizer.name", "model.dtype")


@dataclasses.dataclass(frozen=True)
class OnChip:
    """A run on one kind of device.

    Attributes:
      chip: which.
      subject: the run as training would arrange it there.
      estimate: of one device's work.
      roofline: of a step.
    """

    chip: Chip
    subject: Subject
    estimate: Estimate
    roofline: Roofline

    @property
    def fits(self) -> bool:
        """Whether one device can hold it."""
        return fits(self.estimate.memory.peak, self.chip)


@dataclasses.dataclass(frozen=True)
class Alternative:
    """The same run with something changed.

    Attributes:
      change: what.
      found: what comes of it.
    """

    change: Change
    found: OnChip

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
      shown: the one whose parts are told: the first that fits, else the one with the most memory.
      compiled: of the shown one's program, where that was asked for.
      alternatives: for the shown one where it does not fit.
      machine: the run on the devices that are here; None where these only stand for others.
    """

    texts: Texts
    chips: tuple[OnChip, ...]
    shown: OnChip
    compiled: Compiled | None
    alternatives: tuple[Alternative, ...]
    machine: Machine | None = None


def plan(
    settings: Settings, texts: Texts, chips: Sequence[Chip], *, compile_too: bool = False, here: bool = False
) -> Plan:
    """Plans a run on all devices of JAX, whichever chips these stand for.

    Args:
      settings: of the run.
      texts: what is known of its texts.
      chips: what the devices may be.
      compile_too: whether to compile the step of the one that is shown.
      here: whether to plan the run on the devices that are here too, with the step compiled for them.

    Raises:
      EndxError: for what training would refuse.
    """
    found = on_chips(outline_run(settings, texts), chips)
    fitting = [one for one in found if one.fits]
    shown = fitting[0] if fitting else max(found, key=lambda one: one.chip.memory)
    others = () if shown.fits else tuple(alternatives(settings, texts, shown))
    compiled = compile_step(shown.subject) if compile_too else None
    return Plan(texts, found, shown, compiled, others, plan_machine(settings, texts) if here else None)


def on_chips(outline: Outline, chips: Sequence[Chip]) -> tuple[OnChip, ...]:
    """The run on each chip; looked at once for all on which its steps are cut up alike."""
    known: dict[Execution, tuple[Subject, Estimate]] = {}
    found = []
    for chip in chips:
        subject = outline.on(chip)
        execution = subject.train_plan.execution
        if execution not in known:
            known[execution] = subject, estimate(subject)
        subject, own = known[execution]
        found.append(OnChip(chip, subject, own, roofline(own, chip)))
    return tuple(found)


def alternatives(settings: Settings, texts: Texts, shown: OnChip) -> list[Alternative]:
    """The run with what could be changed to hold less, one thing at a time or two; those that help, best first."""
    tried = []
    for change in changes(settings, shown):
        try:
            (found,) = on_chips(outline_run(changed(settings, change), texts), [shown.chip])
        except EndxError:  # training would refuse it
            continue
        if found.estimate.memory.peak < shown.estimate.memory.peak:
            tried.append(Alternative(change, found))
    return sorted(tried, key=lambda one: one.found.estimate.memory.peak)


def changes(settings: Settings, shown: OnChip) -> list[Change]:
    """What may help a run that does not fit."""
    execution, size = shown.subject.train_plan.execution, settings.train.global_batch_size
    devices = shown.subject.mesh.size
    rows, tensor = size // execution.shards, shown.subject.mesh.shape["tensor"]
    found: list[Change] = []
    if shown.subject.mesh.shape["fsdp"] < devices // tensor:
        found.append({"mesh.fsdp": devices // tensor})
    if settings.model.remat != "full" and settings.model.encoder != "none":
        found.append({"model.remat": "full"})
    whole = {name: value for change in found for name, value in change.items()}
    if len(found) > 1:
        found.append(whole)
    if rows > 1:
        found.append({"train.tower_chunk": max(1, (execution.tower_chunk or rows) // 4)})
    if getattr(settings.objective, "loss_tile", None) is not None and execution.loss_tile is None and size > 512:
        found.append({"objective.loss_tile": 512})
    if settings.optimizer.name == "adamw":
        found += [{"optimizer.name": "adafactor"}, {**whole, "optimizer.name": "adafactor"}]
    if settings.model.dtype == "float32":
        found.append({"model.dtype": "bfloat16"})
    return found


def changed(settings: Settings, change: Change) -> Settings:
    """The settings with some of them changed."""
    for name, value in change.items():
        section, _, key = name.partition(".")
        settings = dataclasses.replace(
            settings, **{section: dataclasses.replace(getattr(settings, section), **{key: value})}
        )
    return settings
