"""Instructions of a compiled program, with the trip counts of the loops they are in, and its collectives."""

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
INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*?) ([a-z][a-z0-9\-]*)\((.*)$")
SHAPE = re.compile(r"\b([a-z]+)(\d*)[a-z0-9]*\[([\d,]*)\]")
CALLED = re.compile(
    r"\b(?:body|calls|to_apply|branch_computations|true_computation|false_computation|called_computations)="
    r"(\{[^}]*\}|%?[\w.\-]+)"
)
TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
CONDITION = re.compile(r"\bcondition=%?([\w.\-]+)")
OPERAND = re.compile(r"%([\w.\-]+)")
OP_NAME = re.compile(r'op_name="([^"]*)"')
# Operations whose computations run on their own; those of all others (fusions, reductions) are part of the operation.
OUTER = ("while", "call", "conditional", "async-start")
# Name of the TPU compiler's fusions that compute a reduce-scatter.
REDUCE_SCATTER = "all-reduce-scatter"
# On a TPU, one fusion starts an asynchronous collective, and every fusion that runs meanwhile repeats it.
BEGUN, CONTINUED = "async-collective-start", re.compile(r'"async_collective_fusion_config":\{"flag_start":"\d')


@dataclasses.dataclass(frozen=True)
class Instruction:
    """Instruction of a compiled program at one of its calls.

    Attributes:
      name: its name.
      root: true if its result is that of its computation.
      opcode: XLA's name of the operation.
      shape: shape of the result, as text.
      names: names of the operands.
      operands: shapes of the operands, as text.
      rest: operands and attributes, as text.
      times: number of runs; None if the trip count of a loop around it is unknown.
      loops: number of loops around it.
      asynchronous: true if other work can run between its start and its end.
      fusions: number of fusions around it.
      inner: instructions of a fusion; empty for others.
    """

    name: str
    root: bool
    opcode: str
    shape: str
    names: tuple[str, ...]
    operands: tuple[str, ...]
    rest: str
    times: int | None
    loops: int
    asynchronous: bool
    fusions: int
    inner: tuple["Instruction", ...] = dataclasses.field(default=(), repr=False)

    @property
    def source(self) -> str:
        """Place in the traced function; empty if unknown."""
        match = OP_NAME.search(self.rest)
        return match[1] if match else ""


@dataclasses.dataclass(frozen=True)
class Collective:
    """Collective instruction of a program.

    Attributes:
      kind: one of `KINDS`.
      bytes: bytes of its result on one device, per run.
      times: number of runs; None if the trip count of a loop around it is unknown.
      loops: number of loops around it.
      source: its place in the traced function.
      asynchronous: true if other work can run between its start and its end.
    """

    kind: str
    bytes: int
    times: int | None
    loops: int
    source: str
    asynchronous: bool = False


def collectives(program: str) -> list[Collective]:
    """Returns all collectives of a program, the text `compiled.as_text()`, including those in loops and calls.

    An asynchronous collective counts once, and all branches of a conditional count. A TPU's compiler may write a
    gather as an all-reduce of parts that are zero elsewhere; it is listed as an all-reduce.
    """
    return [collective for op in instructions(program) if (collective := as_collective(op))]


def as_collective(op: Instruction) -> Collective | None:
    """Returns an instruction as a collective; None if it is none, or the start of one, or counted elsewhere."""
    kind = op.opcode.removesuffix("-done")
    # Of a start and its end, only the end has the shape of the result.
    if kind not in KINDS or CONTINUED.search(op.rest):
        return None
    apart = op.asynchronous or kind != op.opcode or "async_collective_name=" in op.rest
    return Collective(kind, shape_bytes(op.shape), op.times, op.loops, op.source, apart)


def instructions(program: str) -> Iterator[Instruction]:
    """Yields all instructions of a compiled program; those of loops, calls, fusions and branches once per call.

    The computations by which collectives reduce two numbers are left out.
    """
    computations, entry = _computations(program)
    yield from _instructions(computations, entry, times=1, loops=0, asynchronous=False, fusions=0)


def _computations(program: str) -> tuple[dict[str, list[re.Match]], str]:
    """Returns the instructions of each computation, and the name of the entry computation."""
    computations: dict[str, list[re.Match]] = {}
    entry = name = ""
    for line in program.splitlines():
        begins = COMPUTATION.match(line)
        if begins:
            name = begins[2]
            computations[name] = []
            entry = name if begins[1] else entry
        elif name and (instruction := INSTRUCTION.match(line)):
            computations[name].append(instruction)
    if not entry:
        raise ValueError("this is not the text of a compiled program: it has no ENTRY computation")
    return computations, entry


def _instructions(
    computations: dict[str, list[re.Match]],
    name: str,
    times: int | None,
    loops: int,
    asynchronous: bool,
    fusions: int,
) -> Iterator[Instruction]:
    shapes = {instruction[2]: instruction[3] for instruction in computations[name]}
    for instruction in computations[name]:
        root, label, shape, opcode, rest = instruction.groups()
        names = tuple(OPERAND.findall(rest.partition(")")[0]))
        operands = tuple(shapes.get(operand, "") for operand in names)
        reduces = f"calls=%{REDUCE_SCATTER}" in rest
        opcode = "reduce-scatter" if reduces else opcode
        inside, depth, around = times, loops, fusions + (opcode not in OUTER)
        if opcode == "while":
            trips = _trips(computations, rest)
            inside, depth = (times * trips if trips is not None and times is not None else None), loops + 1
        apart = asynchronous or opcode == "async-start" or label.startswith(BEGUN)
        # An `async-update` and an `async-done` call the same computation as their start.
        leaf = opcode.removesuffix("-start").removesuffix("-done") in KINDS or opcode in ("async-update", "async-done")
        inner: list[Instruction] = []
        for called in () if leaf else CALLED.findall(rest):
            for computation in called.strip("{}").split(","):
                inner += _instructions(computations, computation.strip(" %"), inside, depth, apart, around)
        part_of = tuple(part for part in inner if fusions < part.fusions == around)
        yield Instruction(
            label, bool(root), opcode, shape, names, operands, rest, times, loops, asynchronous, fusions, part_of
        )
        yield from inner


def _trips(computations: dict[str, list[re.Match]], loop: str) -> int | None:
    """Returns the trip count of a loop: an attribute, or, as on a TPU, the constant up to which it counts from zero."""
    said = TRIPS.search(loop)
    if said:
        return int(said[1])
    condition = CONDITION.search(loop)
    lines = computations.get(condition[1], []) if condition else []
    roots = [line[5] for line in lines if line[1] and line[4] == "compare" and "direction=LT" in line[5]]
    constants = {line[2]: line[5].partition(")")[0] for line in lines if line[4] == "constant"}
    bounds = [constants[name] for name in OPERAND.findall("".join(roots).partition(")")[0]) if name in constants]
    return int(bounds[0]) if len(bounds) == 1 else None


def shape_bytes(shape: str) -> int:
    """Returns the bytes of a shape such as `f32[8,16]{1,0}`, or of a tuple of shapes."""
    return sum(map(array_bytes, SHAPE.findall(shape)))


def array_bytes(array: tuple[str, str, str]) -> int:
    """Returns the bytes of an array, a match of `SHAPE`: letters and bits of its type, and dimensions."""
    letters, bits, dimensions = array
    count = math.prod(int(n) for n in dimensions.split(",") if n)
    return math.ceil(count * (8 if letters == "pred" else int(bits or 0)) / 8)
