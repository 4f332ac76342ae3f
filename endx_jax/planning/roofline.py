"""Time of a compiled program by kind of operation: the compiler's estimate, and a roofline.

The roofline takes for each instruction the larger of its FLOP over the peak rate and its bytes over the memory's
bandwidth. A fusion is one instruction: it reads its operands, of those that it slices only the slices, and writes its
results, of those that it updates in place only the update. Copies that run asynchronously cost what exceeds the
bandwidth that the other instructions of the same loop or computation leave, and asynchronous collectives what exceeds
the time of those instructions.
"""

import math
import re
from collections import defaultdict
from collections.abc import Sequence

from endx_jax.parallel.programs import KINDS, SHAPE, Instruction, as_collective, instructions
from endx_jax.planning.chips import Chip

PRODUCTS, KERNELS, COPIES, OTHERS = "matrix products", "attention kernels", "copies and fills", "other fusions"
GATHERS, COMMUNICATION = "gathers and scatters", "communication"
# Share of the peak rate at which a kernel runs the FLOP that it declares. 1, since our kernels declare what they
# schedule: products with their padding to 128 lanes, and vector work at its rate relative to the matrix units.
KERNEL_RATE = 1.0

# The compiler's estimate of an instruction, and a Pallas kernel's own.
CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
KERNEL = re.compile(r'"cost_estimate":\{"flops":"(\d+)".*?"bytes_accessed":"(\d+)"')
# An array of a shape with its layout: dimensions from the fastest, size of a tile, and a memory other than HBM.
ARRAY = re.compile(SHAPE.pattern + r"(?:\{([\d,]*)(?::(?:T\(([\d,]*)\))?([^}]*))?\})?")
FAST = re.compile(r"S\(\d+\)")
# Passes of the matrix units for a product of float32 operands.
PRECISION = re.compile(r"(?:operand_precision=\{|algorithm=)(\w+)")
PASSES = {"high": 3, "highest": 6} | {f"dot_bf16_bf16_f32_x{n}": n for n in (3, 6, 9)} | {"dot_f32_f32_f32": 6}
CONTRACTED = re.compile(r"lhs_contracting_dim(?:ension)?s\D*([\d,\" ]+)")
LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")

# Operations without a cost of their own, and calls of the TPU's compiler that do nothing.
FREE = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "call", "conditional", "async-start")
FREE += ("after-all", "partition-id", "replica-id", "opt-barrier")
NO_CALL = re.compile(r'custom_call_target="(?!tpu_custom_call|__|Topk|PartialReduce)\w+"')
SLICES, UPDATES = ("dynamic-slice", "slice", "gather"), {"dynamic-update-slice": 1, "scatter": 2}
VIEWS = ("bitcast", "copy", "convert", "parameter", "fusion")
MOVES = {"copy", "copy-start", "slice-start", "fusion", "reshape", "transpose", "broadcast", "convert", "pad", "iota"}
MOVES |= {"concatenate", "reverse", *SLICES, *UPDATES, *FREE} - {"gather", "scatter"}


def seconds_by_kind(program: str, chip: Chip) -> tuple[dict[str, float], dict[str, float]]:
    """Returns the time of each kind of operation: by the compiler's estimate, and by the roofline.

    A loop of unknown length counts once, and all branches of a conditional count.

    Args:
      program: text of the compiled program.
      chip: the chip that it is compiled for.

    Returns:
      Two mappings from a kind to seconds; the first is empty if the compiler gives no estimates.
    """
    estimate, roofline = defaultdict[str, float](float), defaultdict[str, float](float)
    at_once, spare, copies, links = (defaultdict[str, float](float) for _ in range(4))
    for one in instructions(program):
        times, place = one.times or 1, one.place
        if found := as_collective(one):
            # An all-reduce passes its bytes twice, and a reduce-scatter all of its operand.
            passed = 2 * found.bytes if found.kind == "all-reduce" else max(found.bytes, sum(_sizes(one, one.operands)))
            if found.asynchronous:
                links[place] += times * passed / chip.link
            else:
                roofline[COMMUNICATION] += times * passed / chip.link
        if one.fusions:
            continue
        kind, kernel = _kind(one), KERNEL.search(one.rest)
        if chip.clock and (cycles := CYCLES.search(one.rest)):
            estimate[kind] += times * int(cycles[1]) / chip.clock
        elif chip.clock and kernel:
            estimate[kind] += times * max(int(kernel[1]) / chip.flops, int(kernel[2]) / chip.bandwidth)
        compute, memory = _flops(one) / chip.flops, _bytes(one) / chip.bandwidth
        if kernel:
            compute, memory = int(kernel[1]) / chip.flops / KERNEL_RATE, int(kernel[2]) / chip.bandwidth
        if one.opcode.endswith("-start"):
            copies[place] += times * memory
        elif kind != COMMUNICATION:
            roofline[kind] += times * max(compute, memory)
            at_once[place] += times * max(compute, memory)
            spare[place] += times * max(compute - memory, 0)
    roofline[COPIES] += sum(max(0, copies[place] - spare[place]) for place in copies)
    roofline[COMMUNICATION] += sum(max(0, links[place] - at_once[place]) for place in links)
    return dict(estimate), {kind: seconds for kind, seconds in roofline.items() if seconds}


def _kind(one: Instruction) -> str:
    opcodes = {part.opcode.removesuffix("-start").removesuffix("-done") for part in _parts(one)}
    if opcodes & {"dot", "convolution"} or CONTRACTED.search(one.rest):
        return PRODUCTS
    if opcodes & {*KINDS}:
        return COMMUNICATION
    if "custom-call" in opcodes and KERNEL.search(one.rest):
        return KERNELS
    if opcodes & {"gather", "scatter"}:
        return GATHERS
    return COPIES if opcodes <= MOVES else OTHERS


def _parts(one: Instruction) -> list[Instruction]:
    """Returns an instruction and, of a fusion, all instructions inside it."""
    return [one, *(part for inner in one.inner for part in _parts(inner))] if one.opcode == "fusion" else [one]


def _flops(one: Instruction) -> float:
    """Returns the FLOP of the products of an instruction, those of float32 once for each of their passes."""
    return sum(_product(part) for part in _parts(one))


def _product(one: Instruction) -> float:
    out = _elements(one.shape)
    precision = PRECISION.search(one.rest)
    float32 = any(operand.startswith("f32") for operand in one.operands)
    passes = PASSES.get(precision[1], 1) if precision and float32 else 1
    if one.opcode == "convolution":
        left, right, result = (_dimensions(shape) for shape in (*one.operands[:2], one.shape))
        labels = LABELS.search(one.rest)
        assert labels
        sizes = [dict(zip(label, size, strict=True)) for label, size in zip(labels.groups(), (left, right, result))]
        summed = sizes[1]["i"]
        for dimension in labels[1]:
            if dimension.isdigit():
                summed *= _pairs(one.rest, int(dimension), *(size[dimension] for size in sizes)) / sizes[2][dimension]
        return passes * 2 * out * summed
    contracted = CONTRACTED.search(one.rest) if one.opcode in ("dot", "custom-call") else None
    if not contracted:
        return 0
    left = _dimensions(one.operands[0])
    return passes * 2 * out * math.prod(left[int(n)] for n in re.findall(r"\d+", contracted[1]))


def _pairs(rest: str, dimension: int, size: int, window: int, out: int) -> int:
    """Returns the number of products along a dimension of a convolution: outputs and places in the window, no padding.

    A TPU's compiler writes the batch of a product of matrices as such a dimension, of as many products as it has rows.
    """

    def option(name: str, default: str) -> str:
        found = re.search(rf"window=\{{[^}}]*\b{name}=([\d_x\-]+)", rest)
        return found[1].split("x")[dimension] if found else default

    stride, left, right = (int(option(name, "1")) for name in ("stride", "lhs_dilate", "rhs_dilate"))
    before = int(option("pad", "0_0").split("_")[0])
    places = ((o * stride + w * right - before, left) for o in range(out) for w in range(window))
    return sum(at >= 0 and at % step == 0 and at // step < size for at, step in places)


def _bytes(one: Instruction) -> float:
    """Returns the bytes that an instruction moves through HBM."""
    if one.opcode in FREE or one.opcode.endswith(("-done", "-update")) or NO_CALL.search(one.rest):
        return 0
    if one.opcode.endswith("-start"):  # (result, operand, ...), or ((operand), result, ...) of a slice
        ends = ARRAY.findall(one.shape)[:2]
        return min(_padded(*end[:-1]) for end in ends) * sum(not FAST.search(end[-1]) for end in ends)
    read = sum(_read((), one, place, size) for place, size in enumerate(_sizes(one, one.operands)))
    return read + _written(one)


def _read(inner: Sequence[Instruction], user: Instruction, place: int, whole: float) -> float:
    """Returns the bytes that an instruction reads of an operand; `inner` is the fusion that it is part of."""
    name = user.name
    if user.opcode == "fusion" and not (inner and _is_view(user)):
        inner = user.inner
        (name,) = (part.name for part in inner if part.opcode == "parameter" and part.rest.startswith(f"{place})"))
    elif user.opcode in ("tuple", *KINDS) or (place == 0 and user.opcode in UPDATES):
        return 0
    elif place == 0 and user.opcode in SLICES:
        return min(whole, whole * _elements(user.shape) / max(1, _elements(user.operands[0])))
    elif user.root or not inner or not _is_view(user):
        return whole
    users = [(part, n) for part in inner for n, operand in enumerate(part.names) if operand == name]
    return min(whole, sum(_read(inner, part, n, whole) for part, n in users))


def _is_view(one: Instruction) -> bool:
    """Returns true if each element of the result is one of the operand, of which a fusion computes what it needs."""
    return all(part.opcode in VIEWS for part in _parts(one))


def _written(one: Instruction) -> float:
    """Returns the bytes of the results of an instruction; where they update an operand in place, of the update."""
    sizes = _hbm(one.shape)
    ends = _ends(one)
    return sum(min(size, end) for size, end in zip(sizes, ends, strict=True)) if len(sizes) == len(ends) else sum(sizes)


def _ends(one: Instruction) -> list[float]:
    """Returns for each result of an instruction the largest number of bytes that are written to it."""
    if one.opcode in UPDATES:
        return [sum(_hbm(one.operands[UPDATES[one.opcode]]))]
    if one.opcode != "fusion":
        return [math.inf]
    known = {part.name: part for part in one.inner}
    root = next(part for part in one.inner if part.root)
    found = []
    for name in root.names if root.opcode == "tuple" else [root.name]:
        part, same = known[name], True
        while part.names and _is_view(part):
            part, same = known[part.names[0]], same and part.opcode == "bitcast"
        if part.opcode in KINDS or (same and part.opcode == "parameter"):
            found.append(0.0)
        else:
            found += _ends(part) if part.opcode in UPDATES or part.opcode == "fusion" else [math.inf]
    return found


def _dimensions(shape: str) -> list[int]:
    return [int(n) for n in ARRAY.findall(shape)[0][2].split(",") if n]


def _elements(shape: str) -> int:
    return math.prod(_dimensions(shape))


def _sizes(one: Instruction, shapes: Sequence[str]) -> list[int]:
    return [sum(_hbm(shape)) for shape in shapes]


def _hbm(shape: str) -> list[int]:
    """Returns the bytes of each array of a shape; 0 of those in another memory."""
    return [0 if FAST.search(array[-1]) else _padded(*array[:-1]) for array in ARRAY.findall(shape)]


def _padded(letters: str, bits: str, dimensions: str, order: str, tile: str) -> int:
    """Returns the bytes of an array whose fastest dimensions are padded to whole tiles."""
    sizes = [int(n) for n in dimensions.split(",") if n]
    for place, of_tile in zip(order.split(",") if order else (), reversed(tile.split(",") if tile else ())):
        sizes[int(place)] = math.ceil(sizes[int(place)] / int(of_tile)) * int(of_tile)
    return math.ceil(math.prod(sizes) * (8 if letters == "pred" else int(bits or 0)) / 8)
