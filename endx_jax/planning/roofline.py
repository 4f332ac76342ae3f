"""Roofline of a program that XLA compiled for a GPU, by kind of kernel.

A kernel takes the larger of its FLOP over the peak rate and its bytes over the memory's bandwidth. A fusion is one
kernel: it reads of its operands what it needs, such as a slice, and writes its results, or the parts that it updates in
place. Asynchronous collectives take what exceeds the time of the kernels, and asynchronous copies a launch alone.
"""

import math
import re
from collections import defaultdict
from collections.abc import Sequence

from endx_jax.planning.chips import Chip
from endx_jax.planning.programs import KINDS, SHAPE, Instruction, array_bytes, as_collective, instructions, shape_bytes

PRODUCTS, OTHERS = "matrix products", "other kernels"
COMMUNICATION, LAUNCHES = "communication", "launches of kernels"
# Seconds of a GPU for the launch of a kernel: assumed; 2 to 4 us are usual.
LAUNCH = 2.5e-6

CONTRACTED = re.compile(r"lhs_contracting_dim(?:ension)?s\D*([\d,\" ]+)")
# Operations that are no kernel.
FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "call", "conditional", "async-start"}
FREE |= {"after-all", "partition-id", "replica-id", "opt-barrier"}
SLICES, UPDATES = ("dynamic-slice", "slice", "gather"), {"dynamic-update-slice": 1, "scatter": 2}
VIEWS = ("bitcast", "copy", "convert", "parameter", "fusion")


def roofline(program: str, chip: Chip) -> dict[str, float]:
    """Returns the least seconds of each kind of kernel of a program, and of their launches.

    Each fusion, call and copy counts as one kernel. A loop of unknown length counts once, and all branches of a
    conditional count.

    Args:
      program: text `compiled.as_text()`.
      chip: the GPU.
    """
    seconds, links = defaultdict[str, float](float), 0.0
    for op in instructions(program):
        times = op.times or 1
        if collective := as_collective(op):
            # An all-reduce passes its bytes twice, and a reduce-scatter those of its operand.
            passed = collective.bytes * (2 if collective.kind == "all-reduce" else 1)
            if collective.kind == "reduce-scatter":
                passed = max(map(shape_bytes, op.operands), default=passed)
            if collective.asynchronous:
                links += times * passed / chip.link
            else:
                seconds[COMMUNICATION] += times * passed / chip.link
        if op.fusions or op.opcode in FREE or op.opcode.endswith(("-done", "-update")):
            continue
        seconds[LAUNCHES] += times * LAUNCH
        if op.opcode not in KINDS and not op.opcode.endswith("-start"):
            flops = sum(map(_flops, _parts(op)))
            kind = PRODUCTS if flops else OTHERS
            seconds[kind] += times * max(flops / chip.flops, _bytes(op) / chip.bandwidth)
    seconds[COMMUNICATION] += max(0.0, links - seconds[PRODUCTS] - seconds[OTHERS])
    return {kind: time for kind, time in seconds.items() if time}


def _parts(op: Instruction) -> list[Instruction]:
    """Returns an instruction and, of a fusion, all instructions inside it."""
    return [op, *(part for inner in op.inner for part in _parts(inner))] if op.opcode == "fusion" else [op]


def _flops(op: Instruction) -> float:
    """Returns the FLOP of a matrix product, which may be a call of cuBLAS; 0 for other instructions."""
    contracted = CONTRACTED.search(op.rest)
    if op.opcode not in ("dot", "custom-call") or not contracted:
        return 0
    summed = math.prod(_dimensions(op.operands[0])[int(n)] for n in re.findall(r"\d+", contracted[1]))
    return 2 * math.prod(_dimensions(op.shape)) * summed


def _bytes(op: Instruction) -> float:
    """Returns the bytes that a kernel reads and writes."""
    read = sum(_read((), op, place, shape_bytes(shape)) for place, shape in enumerate(op.operands))
    return read + sum(map(min, map(array_bytes, SHAPE.findall(op.shape)), _written(op)))


def _read(inner: Sequence[Instruction], user: Instruction, place: int, whole: float) -> float:
    """Returns the bytes that an instruction reads of an operand; `inner` is the fusion that it is part of."""
    name = user.name
    if user.opcode == "fusion" and not (inner and _is_view(user)):
        inner = user.inner
        (name,) = (part.name for part in inner if part.opcode == "parameter" and part.rest.startswith(f"{place})"))
    elif user.opcode == "tuple" or (place == 0 and user.opcode in UPDATES):
        return 0
    elif place == 0 and user.opcode in SLICES:
        share = math.prod(_dimensions(user.shape)) / max(1, math.prod(_dimensions(user.operands[0])))
        return whole * min(1, share)
    elif user.root or not inner or not _is_view(user):
        return whole
    users = [(part, n) for part in inner for n, operand in enumerate(part.names) if operand == name]
    return min(whole, sum(_read(inner, part, n, whole) for part, n in users))


def _written(op: Instruction) -> list[float]:
    """Returns for each result of an instruction the most bytes that are written to it."""
    if '"__cublas$' in op.rest:
        return [math.inf, 0.0]  # the second is scratch memory
    if op.opcode != "fusion":
        update = SHAPE.findall(op.operands[UPDATES[op.opcode]]) if op.opcode in UPDATES else []
        return [array_bytes(update[0]) if update else math.inf] * len(SHAPE.findall(op.shape))
    parts = {part.name: part for part in op.inner}
    (root,) = (part for part in op.inner if part.root)
    written = []
    for name in root.names if root.opcode == "tuple" else [root.name]:
        part, same = parts[name], True
        while part.names and _is_view(part):
            part, same = parts[part.names[0]], same and part.opcode == "bitcast"
        if same and part.opcode == "parameter":
            written.append(0.0)
        else:
            written += _written(part) if part.opcode in (*UPDATES, "fusion") else [math.inf]
    return written


def _is_view(op: Instruction) -> bool:
    """Returns true if each element of the result is one of the operand, of which a fusion computes what it needs."""
    return all(part.opcode in VIEWS for part in _parts(op))


def _dimensions(shape: str) -> list[int]:
    return [int(n) for n in SHAPE.findall(shape)[0][2].split(",") if n]
