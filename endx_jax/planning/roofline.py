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
GATHERS, COMMUNICATION = "gathers and scatters", "communication"
# Cycles of a TPU's vector units for each attention weight in a kernel, which declares an exponential for each: bundles
# of the compiler's final schedules for v5e with blocks of 256 tokens. They are 0.008 forward and 0.012 backward, 0.009
# and 0.013 with dropout.
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
    gives none.
    """
    estimate, roofline = defaultdict[str, float](float), defaultdict[str, float](float)
    busy, spare, copies, links = (defaultdict[str, float](float) for _ in range(4))
    for one in instructions(program):
        times, place = one.times or 1, one.place
        if found := as_collective(one):
            # An all-reduce passes its bytes twice, and a reduce-scatter those of its operand.
            passed = found.bytes * (2 if found.kind == "all-reduce" else 1)
            if found.kind == "reduce-scatter":
                passed = max(map(shape_bytes, one.operands), default=passed)
            into, where = (links, place) if found.asynchronous else (roofline, COMMUNICATION)
            into[where] += times * passed / chip.link
        if one.fusions:
            continue
        kind, kernel, cycles = _kind(one), KERNEL.search(one.rest), CYCLES.search(one.rest)
        compute, memory = _flops(one) / chip.flops, _bytes(one) / chip.bandwidth
        if kernel:
            flops, weights, moved = map(int, kernel.groups())
            vectors = weights * WEIGHT_CYCLES / chip.clock if chip.clock else 0
            compute, memory = max(flops / chip.flops, vectors), moved / chip.bandwidth
        if chip.clock and (cycles or kernel):
            estimate[kind] += times * (int(cycles[1]) / chip.clock if cycles else max(compute, memory))
        if kind == COMMUNICATION:
            continue
        if one.asynchronous or one.opcode.endswith("-start"):
            copies[place] += times * memory
        else:
            roofline[kind] += times * max(compute, memory)
            busy[place] += times * max(compute, memory)
            spare[place] += times * max(compute - memory, 0)
    roofline[COPIES] += sum(max(0, copies[place] - spare[place]) for place in copies)
    roofline[COMMUNICATION] += sum(max(0, links[place] - busy[place]) for place in links)
    return dict(estimate), {kind: seconds for kind, seconds in roofline.items() if seconds}


def _kind(one: Instruction) -> str:
    opcodes = {part.opcode.removesuffix("-start").removesuffix("-done") for part in _parts(one)}
    if opcodes & {"dot", "convolution"} or CONTRACTED.search(one.rest):
        return PRODUCTS
    if opcodes & {*KINDS}:
        return COMMUNICATION
    if KERNEL.search(one.rest):
        return KERNELS
    return GATHERS if opcodes & {"gather", "scatter"} else COPIES if opcodes <= MOVES else OTHERS


def _parts(one: Instruction) -> list[Instruction]:
    """Returns an instruction and, of a fusion, all instructions inside it."""
    return [one, *(part for inner in one.inner for part in _parts(inner))] if one.opcode == "fusion" else [one]


def _flops(one: Instruction) -> float:
    """Returns the FLOP of the products of an instruction, those of float32 once for each of their passes."""
    return sum(_product(part) for part in _parts(one))


def _product(one: Instruction) -> float:
    contracted, labels = CONTRACTED.search(one.rest), LABELS.search(one.rest)
    if one.opcode == "convolution" and labels:
        shapes = map(_dimensions, (*one.operands[:2], one.shape))
        left, kernel, out = (dict(zip(*pair, strict=True)) for pair in zip(labels.groups(), shapes, strict=True))
        spatial = [name for name in kernel if name.isdigit()]
        summed = kernel["i"] * math.prod(_pairs(one.rest, int(n), left[n], kernel[n], out[n]) / out[n] for n in spatial)
    elif one.opcode in ("dot", "custom-call") and contracted:
        summed = math.prod(_dimensions(one.operands[0])[int(n)] for n in re.findall(r"\d+", contracted[1]))
    else:
        return 0
    precision, float32 = PRECISION.search(one.rest), any(shape.startswith("f32") for shape in one.operands)
    passes = PASSES.get(precision[1], 1) if precision and float32 else 1
    return passes * 2 * math.prod(_dimensions(one.shape)) * summed


def _pairs(rest: str, dimension: int, size: int, window: int, out: int) -> int:
    """Returns the number of products along a dimension of a convolution, over all outputs, without padding.

    A TPU's compiler writes the batch of a product of matrices as a dimension with one product for each output.
    """

    def option(name: str, default: str) -> str:
        found = re.search(rf"window=\{{[^}}]*\b{name}=([\d_x\-]+)", rest)
        return found[1].split("x")[dimension] if found else default

    stride, left, right = (int(option(name, "1")) for name in ("stride", "lhs_dilate", "rhs_dilate"))
    before = int(option("pad", "0_0").split("_")[0])
    places = (o * stride + w * right - before for o in range(out) for w in range(window))
    return sum(at >= 0 and at % left == 0 and at // left < size for at in places)


def _bytes(one: Instruction) -> float:
    """Returns the bytes that an instruction moves through HBM."""
    if one.opcode in FREE or one.opcode.endswith(("-done", "-update")) or NO_CALL.search(one.rest):
        return 0
    if one.opcode.endswith("-start"):  # (result, operand, ...), or ((operand), result, ...) of a slice
        ends = ARRAY.findall(one.shape)[:2]
        return min(_padded(*end) for end in ends) * sum(not end[-1] for end in ends)
    read = sum(_read((), one, place, sum(_hbm(shape))) for place, shape in enumerate(one.operands))
    return read + sum(map(min, _hbm(one.shape), _written(one)))


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


def _written(one: Instruction) -> list[float]:
    """Returns for each result of an instruction the most bytes that are written to it."""
    if '"__cublas$' in one.rest:
        return [math.inf, 0.0]  # the second is scratch memory
    if one.opcode != "fusion":
        update = ARRAY.findall(one.operands[UPDATES[one.opcode]]) if one.opcode in UPDATES else []
        return [_padded(*update[0]) if update else math.inf] * len(_hbm(one.shape))
    known = {part.name: part for part in one.inner}
    (root,) = (part for part in one.inner if part.root)
    found = []
    for name in root.names if root.opcode == "tuple" else [root.name]:
        part, same = known[name], True
        while part.names and _is_view(part):
            part, same = known[part.names[0]], same and part.opcode == "bitcast"
        if part.opcode in KINDS or (same and part.opcode == "parameter"):
            found.append(0.0)
        else:
            found += _written(part) if part.opcode in (*UPDATES, "fusion") else [math.inf]
    return found


def _is_view(one: Instruction) -> bool:
    """Returns true if each element of the result is one of the operand, of which a fusion computes what it needs."""
    return all(part.opcode in VIEWS for part in _parts(one))


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
