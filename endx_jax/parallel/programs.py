"""Collectives of a compiled program, with their bytes and the trip counts of their loops."""

import dataclasses
import math
import re
from collections.abc import Iterator

KINDS = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-broadcast",
    "collective-permute",
    "ragged-all-to-all",
    "reduce-scatter",
)

# A computation begins at the first column: `%name (parameters) -> shape {`, and its instructions are indented:
# `  ROOT %name = shape opcode(operands), attribute=value, ...`, where the shape may be a tuple of shapes.
COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?[\w.\-]+ = (.*?) ([a-z][a-z0-9\-]*)\((.*)$")
SHAPE = re.compile(r"\b([a-z]+)(\d*)[a-z0-9]*\[([\d,]*)\]")
CALLED = re.compile(
    r"\b(?:body|calls|to_apply|branch_computations|true_computation|false_computation|called_computations)="
    r"(\{[^}]*\}|%?[\w.\-]+)"
)
TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
OP_NAME = re.compile(r'op_name="([^"]*)"')


@dataclasses.dataclass(frozen=True)
class Collective:
    """Collective instruction of a program.

    Attributes:
      kind: one of `KINDS`.
      bytes: of its result on one device, each time.
      times: number of runs; None if the trip count of a loop around it is unknown.
      loops: number of loops around it.
      source: its place in the traced function.
    """

    kind: str
    bytes: int
    times: int | None
    loops: int
    source: str


def collectives(program: str) -> list[Collective]:
    """Returns all collectives of a compiled program, including those in loops and calls.

    An asynchronous collective counts once, and all branches of a conditional count.

    Args:
      program: `compiled.as_text()`, of `jax.jit(...).lower(...).compile()`.
    """
    computations, entry = _computations(program)
    return list(_collectives(computations, entry, times=1, loops=0))


def _computations(program: str) -> tuple[dict[str, list[str]], str]:
    """Returns the lines of each computation, and the name of the entry computation."""
    computations: dict[str, list[str]] = {}
    entry = name = ""
    for line in program.splitlines():
        begins = COMPUTATION.match(line)
        if begins:
            name = begins[2]
            computations[name] = []
            entry = name if begins[1] else entry
        elif name:
            computations[name].append(line)
    if not entry:
        raise ValueError("this is not the text of a compiled program: it has no ENTRY computation")
    return computations, entry


def _collectives(computations: dict[str, list[str]], name: str, times: int | None, loops: int) -> Iterator[Collective]:
    for line in computations[name]:
        instruction = INSTRUCTION.match(line)
        if not instruction:
            continue
        shape, opcode, rest = instruction.groups()
        kind = opcode.removesuffix("-start").removesuffix("-done")
        if kind in KINDS:  # What it calls is only how two numbers are reduced.
            if not opcode.endswith("-start"):  # Of two halves, only the second has the result alone for its shape.
                source = OP_NAME.search(rest)
                yield Collective(kind, shape_bytes(shape), times, loops, source[1] if source else "")
            continue
        if opcode in ("async-update", "async-done"):  # Their start calls the same computation.
            continue
        inside, depth = times, loops
        if opcode == "while":
            trips = TRIPS.search(rest)
            inside, depth = (times * int(trips[1]) if trips and times is not None else None), loops + 1
        for called in CALLED.findall(rest):
            for computation in called.strip("{}").split(","):
                yield from _collectives(computations, computation.strip(" %"), inside, depth)


def shape_bytes(shape: str) -> int:
    """Returns the bytes of a shape such as `f32[8,16]{1,0}`, or of a tuple of shapes."""
    total = 0
    for letters, bits, dimensions in SHAPE.findall(shape):
        count = math.prod(int(n) for n in dimensions.split(",") if n)
        total += math.ceil(count * (8 if letters == "pred" else int(bits or 0)) / 8)
    return total
