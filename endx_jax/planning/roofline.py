"""Time of a compiled program by kind of operation: the compiler's estimate, and a roofline.

The roofline of an instruction is the larger of its FLOP over the peak rate and its bytes over the memory's bandwidth. A
fusion is one instruction: it reads of its operands what it needs, such as a slice, and writes its results, or the parts
that it updates in place. Asynchronous copies take what exceeds the bandwidth that the other instructions of the same
loop or computation leave, and asynchronous collectives what exceeds the time of those instructions.
"""

import math
import re
from collections import defaultdict
from collections.abc import Sequence

from endx_jax.numerics import round_up
from endx_jax.planning.chips import Chip
from endx_jax.planning.programs import KINDS, SHAPE, Instruction, as_collective, instructions, shape_bytes

PRODUCTS, KERNELS, COPIES, OTHERS = "matrix products", "attention kernels", "copies and fills", "other fusions"
GATHERS, COMMUNICATION, LAUNCHES = "gathers and scatters", "communication", "launches of kernels"
# Seconds of a GPU for the launch of a kernel: assumed; 2 to 4 us are usual.
LAUNCH = 2.5e-6
# Cycles of a TPU's vector units for each attention weight in a kernel, which declares an exponential for each: bundles
# of the compiler's final schedules for v5e with blocks of 256 tokens. They are 0.008 forward and 0.012 backward.
WEIGHT_CYCLES = 0.011

# The compiler's estimate of an instruction, and a Pallas kernel's own.
CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
KERNEL = re.compile(r'"cost_estimate":\{"flops":"(\d+)","transcendentals":"(\d+)","bytes_accessed":"(\d+)"')
# An array of a shape with its layout: dimensions from the fastest, size of a tile, and a memory other than HBM.
ARRAY = re.compile(SHAPE.pattern + r"(?:\{([\d,]*)(?::(?:T\(([\d,]*)\))?[^}]*?(S\(\d+\))?)?\})?")
# Passes of the matrix units for a product of float32 operands.
PRECISION = re.compile(r"(?:operand_precision=\{|algorithm=)(\w+)")
PASSES = {"high": 3, "highest": 6} | {f"dot_bf16_bf16_f32_x{n}": n for n in (3, 6, 9)} | {"dot_f32_f32_f32": 6}
CONTRACTED = re.compile(r"lhs_contracting_dim(?:ension)?s\D*([\d,\" ]+)")
LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")

# Operations without a cost of their own, and calls of the TPU's compiler that do nothing.
FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "call", "conditional", "async-start"}
FREE |= {"after-all", "partition-id", "replica-id", "opt-barrier"}
NO_CALL = re.compile(r'custom_call_target="(?!tpu_custom_call|__|Topk|PartialReduce)\w+"')
SLICES, UPDATES = ("dynamic-slice", "slice", "gather"), {"dynamic-update-slice": 1, "scatter": 2}
VIEWS = ("bitcast", "copy", "convert", "parameter", "fusion")
MOVES = {*FREE, *VIEWS, *SLICES, *UPDATES, "reshape", "transpose", "broadcast", "pad", "iota", "concatenate", "reverse"}


def seconds_by_kind(program: str, chip: Chip) -> tuple[dict[str, float], dict[str, float]]:
    """Returns the seconds of each kind of operation of a program: by the compiler's estimate, and by the roofline.

    A loop of unknown length counts once, and all branches of a conditional count. The estimate is empty if the compiler
    gives none. The roofline of a GPU includes launches: each fusion, call and copy counts as one kernel.
    """
    estimate, roofline = defaultdict[str, float](float), defaultdict[str, float](float)
    busy, spare, copies, links = (defaultdict[str, float](float) for _ in range(4))
    for op in instructions(program):
        times, place = op.times or 1, op.place
        if collective := as_collective(op):
            # An all-reduce passes its bytes twice, and a reduce-scatter those of its operand.
            passed = collective.bytes * (2 if collective.kind == "all-reduce" else 1)
            if collective.kind == "reduce-scatter":
                passed = max(map(shape_bytes, op.operands), default=passed)
            into, where = (links, place) if collective.asynchronous else (roofline, COMMUNICATION)
            into[where] += times * passed / chip.link
        if op.fusions:
            continue
        if chip.platform == "gpu" and op.opcode not in FREE and not op.opcode.endswith(("-done", "-update")):
            roofline[LAUNCHES] += times * LAUNCH
        kind, kernel, cycles = _kind(op), KERNEL.search(op.rest), CYCLES.search(op.rest)
        compute, memory = _flops(op) / chip.flops, _bytes(op) / chip.bandwidth
        if kernel:
            flops, weights, moved = map(int, kernel.groups())
            vectors = weights * WEIGHT_CYCLES / chip.clock if chip.clock else 0
            compute, memory = max(flops / chip.flops, vectors), moved / chip.bandwidth
        if chip.clock and (cycles or kernel):
            estimate[kind] += times * (int(cycles[1]) / chip.clock if cycles else max(compute, memory))
        if kind == COMMUNICATION:
            continue
        if op.asynchronous or op.opcode.endswith("-start"):
            copies[place] += times * memory
        else:
            roofline[kind] += times * max(compute, memory)
            busy[place] += times * max(compute, memory)
            spare[place] += times * max(compute - memory, 0)
    roofline[COPIES] += sum(max(0, copies[place] - spare[place]) for place in copies)
    roofline[COMMUNICATION] += sum(max(0, links[place] - busy[place]) for place in links)
    return dict(estimate), {kind: seconds for kind, seconds in roofline.items() if seconds}


def _kind(op: Instruction) -> str:
    opcodes = {part.opcode.removesuffix("-start").removesuffix("-done") for part in _parts(op)}
    if opcodes & {"dot", "convolution"} or CONTRACTED.search(op.rest):
        return PRODUCTS
    if opcodes & {*KINDS}:
        return COMMUNICATION
    if KERNEL.search(op.rest):
        return KERNELS
    return GATHERS if opcodes & {"gather", "scatter"} else COPIES if opcodes <= MOVES else OTHERS


def _parts(op: Instruction) -> list[Instruction]:
    """Returns an instruction and, of a fusion, all instructions inside it."""
    return [op, *(part for inner in op.inner for part in _parts(inner))] if op.opcode == "fusion" else [op]


def _flops(op: Instruction) -> float:
    """Returns the FLOP of the products of an instruction, those of float32 once for each of their passes."""
    return sum(_product(part) for part in _parts(op))


def _product(op: Instruction) -> float:
    contracted, labels = CONTRACTED.search(op.rest), LABELS.search(op.rest)
    if op.opcode == "convolution" and labels:
        shapes = map(_dimensions, (*op.operands[:2], op.shape))
        left, kernel, out = (dict(zip(*pair, strict=True)) for pair in zip(labels.groups(), shapes, strict=True))
        spatial = [name for name in kernel if name.isdigit()]
        summed = kernel["i"] * math.prod(_pairs(op.rest, int(n), left[n], kernel[n], out[n]) / out[n] for n in spatial)
    elif op.opcode in ("dot", "custom-call") and contracted:
        summed = math.prod(_dimensions(op.operands[0])[int(n)] for n in re.findall(r"\d+", contracted[1]))
    else:
        return 0
    precision, float32 = PRECISION.search(op.rest), any(shape.startswith("f32") for shape in op.operands)
    passes = PASSES.get(precision[1], 1) if precision and float32 else 1
    return passes * 2 * math.prod(_dimensions(op.shape)) * summed


def _pairs(rest: str, dimension: int, size: int, window: int, out: int) -> int:
    """Returns the number of products along a dimension of a convolution, over all outputs, without padding.

    A TPU's compiler writes the batch of a product of matrices as a dimension with one product for each output.
    """

    def option(name: str, default: str) -> str:
        match = re.search(rf"window=\{{[^}}]*\b{name}=([\d_x\-]+)", rest)
        return match[1].split("x")[dimension] if match else default

    stride, left, right = (int(option(name, "1")) for name in ("stride", "lhs_dilate", "rhs_dilate"))
    before = int(option("pad", "0_0").split("_")[0])
    places = (o * stride + w * right - before for o in range(out) for w in range(window))
    return sum(at >= 0 and at % left == 0 and at // left < size for at in places)


def _bytes(op: Instruction) -> float:
    """Returns the bytes that an instruction moves through HBM."""
    if op.opcode in FREE or op.opcode.endswith(("-done", "-update")) or NO_CALL.search(op.rest):
        return 0
    if op.opcode.endswith("-start"):  # (result, operand, ...), or ((operand), result, ...) of a slice
        ends = ARRAY.findall(op.shape)[:2]
        return min(_padded(*end) for end in ends) * sum(not end[-1] for end in ends)
    read = sum(_read((), op, place, sum(_hbm(shape))) for place, shape in enumerate(op.operands))
    return read + sum(map(min, _hbm(op.shape), _written(op)))


def _read(inner: Sequence[Instruction], user: Instruction, place: int, whole: float) -> float:
    """Returns the bytes that an instruction reads of an operand; `inner` is the fusion that it is part of."""
    name = user.name
    if user.opcode == "fusion" and not (inner and _is_view(user)):
        inner = user.inner
        (name,) = (part.name for part in inner if part.opcode == "parameter" and part.rest.startswith(f"{place})"))
    elif user.opcode in ("tuple", *KINDS) or (place == 0 and user.opcode in UPDATES):
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
        update = ARRAY.findall(op.operands[UPDATES[op.opcode]]) if op.opcode in UPDATES else []
        return [_padded(*update[0]) if update else math.inf] * len(_hbm(op.shape))
    parts = {part.name: part for part in op.inner}
    (root,) = (part for part in op.inner if part.root)
    written = []
    for name in root.names if root.opcode == "tuple" else [root.name]:
        part, same = parts[name], True
        while part.names and _is_view(part):
            part, same = parts[part.names[0]], same and part.opcode == "bitcast"
        if part.opcode in KINDS or (same and part.opcode == "parameter"):
            written.append(0.0)
        else:
            written += _written(part) if part.opcode in (*UPDATES, "fusion") else [math.inf]
    return written


def _is_view(op: Instruction) -> bool:
    """Returns true if each element of the result is one of the operand, of which a fusion computes what it needs."""
    return all(part.opcode in VIEWS for part in _parts(op))


def _dimensions(shape: str) -> list[int]:
    return [int(n) for n in ARRAY.findall(shape)[0][2].split(",") if n]


def _hbm(shape: str) -> list[int]:
    """Returns the bytes of each array of a shape; 0 of those in another memory."""
    return [0 if array[-1] else _padded(*array) for array in ARRAY.findall(shape)]


def _padded(letters: str, bits: str, dimensions: str, order: str, tile: str, _: str) -> int:
    """Returns the bytes of an array whose fastest dimensions are padded to whole tiles."""
    sizes = [int(n) for n in dimensions.split(",") if n]
    for place, multiple in zip(order.split(","), reversed(tile.split(",")), strict=False):
        if place and multiple:
            sizes[int(place)] = round_up(sizes[int(place)], int(multiple))
    return math.ceil(math.prod(sizes) * (8 if letters == "pred" else int(bits or 0)) / 8)
