"""What the compiled step says of itself: the very program that training would run."""

import dataclasses
from collections import defaultdict

from endx_jax.parallel.programs import collectives
from endx_jax.planning.subject import Subject
from endx_jax.training.step import program_bytes


@dataclasses.dataclass(frozen=True)
class Compiled:
    """Of one device's part of the program, from XLA.

    Attributes:
      arguments: bytes of the state and the batch.
      temporaries: bytes of everything else that is held.
      peak: bytes of both, and of results that have no argument's place.
      collectives: by kind, how often a step, and the bytes of their results; a loop of unknown length counts once.
    """

    arguments: int
    temporaries: int
    peak: int
    collectives: dict[str, tuple[int, int]]


def compile_step(subject: Subject) -> Compiled:
    """Compiles the step for the devices that are here, virtual ones too."""
    program = subject.trace().lower().compile()
    memory = program.memory_analysis()
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for one in collectives(program.as_text()):
        counts[one.kind][0] += one.times or 1
        counts[one.kind][1] += (one.times or 1) * one.bytes
    arguments, temporaries = memory.argument_size_in_bytes, memory.temp_size_in_bytes
    kinds = {kind: (times, total) for kind, (times, total) in sorted(counts.items())}
    return Compiled(arguments, temporaries, program_bytes(program), kinds)
