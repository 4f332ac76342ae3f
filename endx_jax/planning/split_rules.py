"""How the results of one operation are split over the mesh when its operands are, and the other way round."""

import math
from collections.abc import Callable, Iterable, Mapping

from endx_jax.planning.operations import Operation, Value, split_by

# Sizes of the mesh's axes, of those longer than one.
Axes = Mapping[str, int]
REDUCTIONS = ("reduce_sum", "reduce_max", "reduce_min", "reduce_and", "reduce_or", "reduce_prod", "argmax", "argmin")


def assign(axes: Axes, value: Value, split: Iterable[tuple[str, ...]]) -> None:
    """Splits a value further where it can be: an axis splits one dimension, which it has to divide."""
    taken = {name for names in value.split for name in names}
    found = []
    for size, old, new in zip(value.shape, value.split, split, strict=True):
        own = tuple(name for name in new if name in axes and name not in taken)
        if not old and own and size % math.prod(axes[name] for name in own) == 0:
            taken |= set(own)
            old = own
        found.append(old)
    value.split = tuple(found)


def forward(operation: Operation, axes: Axes) -> None:
    """Splits what an operation makes as what it is given is split."""
    FORWARD.get(operation.name, _like_inputs)(operation, axes)
    if operation.name in PASSED and operation.inputs[0].is_parameter:
        operation.outputs[0].is_parameter = True


def backward(operation: Operation, axes: Axes) -> None:
    """Splits what an operation is given as what it makes is split; where that is an entry for an entry."""
    if rule := BACKWARD.get(operation.name):
        rule(operation, axes)
    elif operation.name not in FORWARD:
        for value in operation.inputs:
            if value.shape == operation.outputs[0].shape:
                assign(axes, value, operation.outputs[0].split)


def _like_inputs(operation: Operation, axes: Axes) -> None:
    """Entry by entry; and for all else, every dimension that is as long as the input's."""
    operands = sorted((value for value in operation.inputs if value.shape), key=lambda value: value.is_parameter)
    for result in operation.outputs:
        for value in operands:
            if len(value.shape) == len(result.shape):
                same = zip(value.shape, result.shape, value.split, strict=True)
                assign(axes, result, [names if a == b else () for a, b, names in same])
            elif value.shape and value.shape == result.shape[: len(value.shape)]:
                # A key an example makes numbers for that example.
                assign(axes, result, [*value.split, *[()] * (len(result.shape) - len(value.shape))])


def _reduction(operation: Operation, axes: Axes) -> None:
    (value,), (result, *_) = operation.inputs, operation.outputs
    assign(axes, result, [n for d, n in enumerate(value.split) if d not in operation.params["axes"]])


def _reduction_back(operation: Operation, axes: Axes) -> None:
    (value,), (result, *_) = operation.inputs, operation.outputs
    kept, reduced = iter(result.split), operation.params["axes"]
    assign(axes, value, [() if d in reduced else next(kept) for d in range(len(value.shape))])


def _transpose(operation: Operation, axes: Axes) -> None:
    (value,), (result,) = operation.inputs, operation.outputs
    assign(axes, result, [value.split[d] for d in operation.params["permutation"]])


def _transpose_back(operation: Operation, axes: Axes) -> None:
    (value,), (result,) = operation.inputs, operation.outputs
    order = operation.params["permutation"]
    assign(axes, value, [result.split[order.index(d)] for d in range(len(order))])


def _broadcast(operation: Operation, axes: Axes) -> None:
    value, (result,) = operation.inputs[0], operation.outputs
    split: list[tuple[str, ...]] = [()] * len(result.shape)
    for here, there in enumerate(operation.params["broadcast_dimensions"]):
        if value.shape[here] == result.shape[there]:
            split[there] = value.split[here]
    assign(axes, result, split)


def _broadcast_back(operation: Operation, axes: Axes) -> None:
    value, (result,) = operation.inputs[0], operation.outputs
    places = operation.params["broadcast_dimensions"]
    same = [result.split[p] if value.shape[d] == result.shape[p] else () for d, p in enumerate(places)]
    assign(axes, value, same)


def _reshape(operation: Operation, axes: Axes) -> None:
    value, (result,) = operation.inputs[0], operation.outputs
    assign(axes, result, _reshaped(value, result.shape))


def _reshape_back(operation: Operation, axes: Axes) -> None:
    value, (result,) = operation.inputs[0], operation.outputs
    assign(axes, value, _reshaped(result, value.shape))


def _reshaped(value: Value, shape: tuple[int, ...]) -> list[tuple[str, ...]]:
    """The split after a reshape: of dimensions that are merged or parted, the first keeps it."""
    split: list[tuple[str, ...]] = [()] * len(shape)
    here = there = 0
    while here < len(value.shape) and there < len(shape):
        start, first = here, there
        left, right = value.shape[here], shape[there]
        while left != right and here < len(value.shape) and there < len(shape):
            if left < right:
                here += 1
                left *= value.shape[here] if here < len(value.shape) else 1
            else:
                there += 1
                right *= shape[there] if there < len(shape) else 1
        # Ones belong to nobody.
        source = next((d for d in range(start, min(here + 1, len(value.shape))) if value.shape[d] > 1), start)
        target = next((d for d in range(first, min(there + 1, len(shape))) if shape[d] > 1), first)
        split[target] = value.split[source]
        here, there = here + 1, there + 1
    return split


def _dot(operation: Operation, axes: Axes) -> None:
    left, right = operation.inputs
    (result,) = operation.outputs
    (_, _), (batch, batch_right) = operation.params["dimension_numbers"]
    split = [left.split[a] or right.split[b] for a, b in zip(batch, batch_right, strict=True)]
    frees = [free_dimensions(operation, side) for side in (0, 1)]
    split += [value.split[d] for value, free in zip((left, right), frees, strict=True) for d in free]
    # Where both want an axis, what is computed keeps it and the parameter is gathered.
    if left.is_parameter and not right.is_parameter:
        taken = {name for names in right.split for name in names}
        split = [
            tuple(n for n in names if n not in taken) if len(batch) <= d < len(batch) + len(frees[0]) else names
            for d, names in enumerate(split)
        ]
    assign(axes, result, split)


def free_dimensions(operation: Operation, side: int) -> list[int]:
    """The dimensions of an operand that are the result's too, but for those of the batch."""
    contracted, batch = operation.params["dimension_numbers"]
    value = operation.inputs[side]
    return [d for d in range(len(value.shape)) if d not in contracted[side] and d not in batch[side]]


def _gather(operation: Operation, axes: Axes) -> None:
    table, index = operation.inputs[:2]
    (result,) = operation.outputs
    offset = operation.params["dimension_numbers"].offset_dims
    split: list[tuple[str, ...]] = [()] * len(result.shape)
    rows = [d for d in range(len(result.shape)) if d not in offset]
    for place, names in zip(rows, index.split[:-1], strict=False):
        split[place] = names
    sizes = operation.params["slice_sizes"]
    collapsed = operation.params["dimension_numbers"].collapsed_slice_dims
    kept = [d for d in range(len(table.shape)) if d not in collapsed]
    for place, d in zip(offset, kept, strict=False):
        if sizes[d] == table.shape[d]:
            split[place] = table.split[d]
    assign(axes, result, split)


def _constrained(operation: Operation, axes: Axes) -> None:
    (result,) = operation.outputs
    spec = split_by(operation.params["sharding"].spec, len(result.shape))
    free = operation.params["unconstrained_dims"]
    value = operation.inputs[0]
    if free:
        spec = [value.split[d] if d in free else names for d, names in enumerate(spec)]
    result.split = tuple(tuple(n for n in names if n in axes) for names in spec)


def _constrained_back(operation: Operation, axes: Axes) -> None:
    assign(axes, operation.inputs[0], operation.outputs[0].split)


def _enter(operation: Operation, axes: Axes) -> None:
    _into_part(operation, axes, *operation.inputs, *operation.outputs)


def _leave(operation: Operation, axes: Axes) -> None:
    _into_whole(operation, axes, *operation.inputs, *operation.outputs)


def _enter_back(operation: Operation, axes: Axes) -> None:
    _into_whole(operation, axes, *operation.outputs, *operation.inputs)


def _leave_back(operation: Operation, axes: Axes) -> None:
    _into_part(operation, axes, *operation.outputs, *operation.inputs)


def _into_part(operation: Operation, axes: Axes, outer: Value, inner: Value) -> None:
    """Inside of a `shard_map` a value is split by what that does not handle itself."""
    handled = operation.params["newly_manual_axes"]
    assign(axes, inner, [tuple(n for n in names if n not in handled) for names in outer.split])


def _into_whole(operation: Operation, axes: Axes, inner: Value, outer: Value) -> None:
    """Outside of it by that as well."""
    assign(axes, outer, split_by(operation.params["spec"], len(outer.shape)))
    assign(axes, outer, inner.split)


def _nothing(operation: Operation, axes: Axes) -> None:
    del operation, axes


# What has a parameter for its operand has one for its result.
PASSED = ("convert_element_type", "transpose", "reshape", "squeeze", "copy", "enter", "reduce_precision", "name",
          "sharding_constraint", "optimization_barrier")  # fmt: skip
Rule = Callable[[Operation, Axes], None]
FORWARD: dict[str, Rule] = {
    **dict.fromkeys(REDUCTIONS, _reduction),
    "transpose": _transpose,
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "squeeze": _reshape,
    "expand_dims": _reshape,
    "dot_general": _dot,
    "gather": _gather,
    "sharding_constraint": _constrained,
    "enter": _enter,
    "leave": _leave,
    "psum": _like_inputs,
    "all_gather": _nothing,
    "reduce_scatter": _nothing,
}
BACKWARD: dict[str, Rule] = {
    **dict.fromkeys(REDUCTIONS, _reduction_back),
    "transpose": _transpose_back,
    "broadcast_in_dim": _broadcast_back,
    "reshape": _reshape_back,
    "squeeze": _reshape_back,
    "expand_dims": _reshape_back,
    "sharding_constraint": _constrained_back,
    "enter": _enter_back,
    "leave": _leave_back,
}
