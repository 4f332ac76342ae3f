"""Compiled training step: memory, collectives and time, as reported by the compiler of the devices."""

import dataclasses
import re
import time
from collections import defaultdict

import jax

from endx_jax.errors import EndxError
from endx_jax.experiment.choices import Choice
from endx_jax.experiment.train_plan import TrainPlan
from endx_jax.parallel.memory import bytes_held
from endx_jax.parallel.programs import collectives, instructions
from endx_jax.planning.chips import USABLE, Chip, chip_of
from endx_jax.planning.subject import Subject
from endx_jax.training.step import abstract_batch, program_bytes, used_and_limit

# The compiler's estimate of a fusion, and a Pallas kernel's own.
CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
KERNEL = re.compile(r'"cost_estimate":\{"flops":"(\d+)".*?"bytes_accessed":"(\d+)"')
# Autotuning runs kernels on a device, which is missing here. It affects no array's size.
GPU_OPTIONS = {"xla_gpu_autotune_level": 0}


@dataclasses.dataclass(frozen=True)
class Collectives:
    """Collectives of one kind in the same position.

    Attributes:
      kind: a kind of `parallel.programs.KINDS`.
      in_loop: true if they run in a loop.
      asynchronous: true if other work can run at the same time.
      times: number of executions per step; a loop of unknown length counts once.
      bytes: size of their results on one device, per step.
    """

    kind: str
    in_loop: bool
    asynchronous: bool
    times: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class Compiled:
    """Compiled program of one device, as reported by its compiler.

    Attributes:
      arguments: bytes of the state and the batch.
      temporaries: bytes of intermediate values.
      code: bytes of the program, if it resides in the device's memory.
      peak: bytes of all of them and of results that reuse no argument's buffer.
      room: bytes that are missing if the compiler refused the program; else 0.
      fits: true if the program fits in the memory of a device, by its compiler or its data sheet.
      donated: bytes of arguments whose buffers the results reuse.
      collectives: collectives of the step by kind.
      step: the compiler's estimate of the time of a step, in seconds, without communication; None if it has none.
      seconds: compilation time.
      text: the program; empty if it was refused.
    """

    arguments: int
    temporaries: int
    code: int
    peak: int
    room: int
    fits: bool
    donated: int
    collectives: tuple[Collectives, ...]
    step: float | None
    seconds: float
    text: str = dataclasses.field(repr=False)


def compile_step(subject: Subject) -> Compiled:
    """Compiles the step for the devices of its mesh, which may be local, virtual or described by a topology.

    Raises:
      EndxError: the compiler refuses the step for a reason other than memory.
    """
    device = subject.mesh.devices.flat[0]
    chip = chip_of(device.device_kind)
    start = time.perf_counter()
    try:
        program = subject.trace().lower().compile(GPU_OPTIONS if device.platform == "gpu" else None)
    except jax.errors.JaxRuntimeError as refused:
        try:
            peak, limit = used_and_limit(refused)
        except jax.errors.JaxRuntimeError:
            raise EndxError(f"the compiler of {device.device_kind} refuses the step: {refused}") from None
        arguments = bytes_held((subject.step.state, abstract_batch(subject.batch, subject.mesh)))
        seconds = time.perf_counter() - start
        return Compiled(arguments, peak - arguments, 0, peak, peak - limit, False, 0, (), None, seconds, "")
    seconds = time.perf_counter() - start
    memory, text = program.memory_analysis(), program.as_text()
    code = memory.generated_code_size_in_bytes if device.platform == "tpu" else 0
    peak = program_bytes(program) + code
    return Compiled(
        arguments=memory.argument_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        code=code,
        peak=peak,
        room=0,
        fits=not chip or chip.platform == "tpu" or peak <= USABLE * chip.memory,
        donated=memory.alias_size_in_bytes,
        collectives=summarize(text),
        step=step_seconds(text, chip),
        seconds=seconds,
        text=text,
    )


def compile_what_fits(subject: Subject) -> tuple[Subject, Compiled]:
    """Compiles the step of a run with the chunks and rematerialisation that training would choose.

    Returns:
      The run with the choice, and its compiled step.
    """
    found: dict[Choice, tuple[Subject, Compiled]] = {}

    def compiled(train_plan: TrainPlan) -> int:
        tried = dataclasses.replace(subject, train_plan=train_plan)
        found[train_plan.choice] = tried, compile_step(tried)
        return found[train_plan.choice][1].peak

    return found[subject.train_plan.fitted(compiled).choice]


def summarize(program: str) -> tuple[Collectives, ...]:
    """Returns the collectives of a compiled program's text by kind, those with the most bytes first."""
    counts: dict[tuple[str, bool, bool], list[int]] = defaultdict(lambda: [0, 0])
    for one in collectives(program):
        entry = counts[one.kind, one.loops > 0, one.asynchronous]
        entry[0] += one.times or 1
        entry[1] += (one.times or 1) * one.bytes
    summed = (Collectives(*place, *count) for place, count in counts.items())
    return tuple(sorted(summed, key=lambda one: -one.bytes))


def step_seconds(program: str, chip: Chip | None) -> float | None:
    """Sums the compiler's estimates of all operations that have one, each multiplied by its number of executions.

    XLA's `optimal_seconds` counts a loop once, a float32 product of six passes as one, and -1 for some calls.

    Args:
      program: text of the compiled program.
      chip: the chip of the program; None if it is unknown.

    Returns:
      Seconds; None if the compiler gives no estimates.
    """
    if chip is None or not chip.clock:
        return None
    total = 0.0
    for one in instructions(program):
        if cycles := CYCLES.search(one.rest):
            total += (one.times or 1) * int(cycles[1]) / chip.clock
        elif kernel := KERNEL.search(one.rest):
            total += (one.times or 1) * max(int(kernel[1]) / chip.flops, int(kernel[2]) / chip.bandwidth)
    return total
