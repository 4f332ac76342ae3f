"""The compiled training step: memory, collectives and time, in the words of the compiler of the devices."""

import dataclasses
import re
import time
from collections import defaultdict

import jax

from endx_jax.errors import EndxError
from endx_jax.parallel.memory import bytes_held
from endx_jax.parallel.programs import collectives, instructions
from endx_jax.planning.chips import Chip, chip_of
from endx_jax.planning.subject import Subject
from endx_jax.training.step import abstract_batch, program_bytes

# How a TPU's compiler refuses a program: "Used 27.36G of 15.75G hbm."
NO_ROOM = re.compile(r"Used ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm")
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
# The compiler's estimate of a fusion, and ours of a kernel that it cannot look into.
CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
KERNEL = re.compile(r'"cost_estimate":\{"flops":"(\d+)".*?"bytes_accessed":"(\d+)"')
# GPU kernels are otherwise chosen by running them, for which there is no device. It changes no array.
GPU_OPTIONS = {"xla_gpu_autotune_level": 0}


@dataclasses.dataclass(frozen=True)
class Collectives:
    """Collectives of one kind, alike in where they are.

    Attributes:
      kind: as in `parallel.programs.KINDS`.
      in_loop: whether a loop is around them.
      asynchronous: whether other work can run meanwhile.
      times: a step; of a loop of unknown length one turn counts.
      bytes: of their results on one device, a step.
    """

    kind: str
    in_loop: bool
    asynchronous: bool
    times: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class Compiled:
    """One device's part of the program, in the words of its compiler.

    Attributes:
      arguments: bytes of the state and the batch.
      temporaries: bytes of everything else that is held.
      code: bytes of the program itself, where it is held in the device's memory.
      peak: bytes of all, and of results that have no argument's place.
      room: bytes that the compiler refused the program for lack of; 0: it accepted it.
      donated: bytes of arguments whose place the results take.
      collectives: by kind.
      step: seconds of a step in the compiler's estimate, without communication; None where it gives none.
      seconds: that compiling took.
      text: the program; empty where it was refused.
    """

    arguments: int
    temporaries: int
    code: int
    peak: int
    room: int
    donated: int
    collectives: tuple[Collectives, ...]
    step: float | None
    seconds: float
    text: str = dataclasses.field(repr=False)


def compile_step(subject: Subject) -> Compiled:
    """Compiles the step for the devices of its mesh: those that are here, virtual ones, or a described topology's.

    Raises:
      EndxError: the compiler refuses the step for another reason than memory.
    """
    device = subject.mesh.devices.flat[0]
    start = time.perf_counter()
    try:
        program = subject.trace().lower().compile(GPU_OPTIONS if device.platform == "gpu" else None)
    except jax.errors.JaxRuntimeError as refused:
        used = NO_ROOM.search(str(refused))
        if not used:
            raise EndxError(f"the compiler of {device.device_kind} refuses the step: {refused}") from None
        peak, limit = (int(float(used[n]) * UNITS[used[n + 1]]) for n in (1, 3))
        arguments = bytes_held((subject.step.state, abstract_batch(subject.batch, subject.mesh)))
        seconds = time.perf_counter() - start
        return Compiled(arguments, peak - arguments, 0, peak, peak - limit, 0, (), None, seconds, "")
    seconds = time.perf_counter() - start
    memory, text = program.memory_analysis(), program.as_text()
    code = memory.generated_code_size_in_bytes if device.platform == "tpu" else 0
    return Compiled(
        arguments=memory.argument_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        code=code,
        peak=program_bytes(program) + code,
        room=0,
        donated=memory.alias_size_in_bytes,
        collectives=summarize(text),
        step=step_seconds(text, chip_of(device.device_kind)),
        seconds=seconds,
        text=text,
    )


def summarize(program: str) -> tuple[Collectives, ...]:
    """Returns the collectives of a compiled program's text by kind, those with the most bytes first."""
    counts: dict[tuple[str, bool, bool], list[int]] = defaultdict(lambda: [0, 0])
    for one in collectives(program):
        entry = counts[one.kind, one.loops > 0, one.asynchronous]
        entry[0] += one.times or 1
        entry[1] += (one.times or 1) * one.bytes
    found = (Collectives(*place, *count) for place, count in counts.items())
    return tuple(sorted(found, key=lambda one: -one.bytes))


def step_seconds(program: str, chip: Chip | None) -> float | None:
    """Sums the compiler's estimates of all operations that have one, each as often as it runs.

    XLA's `optimal_seconds` counts a loop once, a float32 product of six passes as one, and -1 for some calls.

    Args:
      program: text of the compiled program.
      chip: that it is compiled for; None: it is none of ours.

    Returns:
      Seconds; None where the compiler estimates nothing.
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
