"""How every value of a traced step is split over the mesh, as the compiler's partitioner would: by what it is made of.

Splits are carried forward from the inputs, then back from the outputs: a gradient is split as its parameter is.
"""

from collections.abc import Iterable

from endx_jax.planning.operations import Operation, Program, Split, Value
from endx_jax.planning.split_rules import Axes, assign, backward, forward

ROUNDS = 2


def lay_out(program: Program, axes: Axes, outputs: Iterable[Split | None]) -> None:
    """Splits all values of a program; those of `program.inputs` are split already.

    Args:
      program: its values' `split` is set.
      axes: sizes of the mesh's axes, of those longer than one.
      outputs: how the program's outputs are split, where that is known.
    """
    outputs = list(outputs)
    for _ in range(ROUNDS):
        _forward(program, axes)
        for value, split in zip(program.outputs, outputs, strict=True):
            if split is not None:
                assign(axes, value, split)
        _backward(program, axes)


def _forward(program: Program, axes: Axes) -> None:
    for operation in program.operations:
        (_loop if operation.bodies else forward)(operation, axes)


def _backward(program: Program, axes: Axes) -> None:
    for operation in reversed(program.operations):
        (_loop_back if operation.bodies else backward)(operation, axes)


def _links(operation: Operation) -> tuple[list[tuple[Value, Value, bool]], list[tuple[Value, Value, bool]]]:
    """(outside, inside, stacked) of a loop's or branch's inputs and outputs; stacked ones have a leading axis more."""
    into: list[tuple[Value, Value, bool]] = []
    out: list[tuple[Value, Value, bool]] = []
    params = operation.params
    for body in operation.bodies:
        if operation.name == "scan":
            fixed, carried = params["num_consts"], params["num_carry"]
            given, stacked_from, made_from = operation.inputs, fixed + carried, carried
        elif operation.name == "while":
            given = operation.inputs[params["cond_nconsts"] :]
            stacked_from = made_from = len(operation.inputs) + 1
        else:
            given = operation.inputs[1:]
            stacked_from = made_from = len(operation.inputs) + 1
        for n, (outer, inner) in enumerate(zip(given, body.inputs, strict=True)):
            into.append((outer, inner, n >= stacked_from))
        for n, (outer, found) in enumerate(zip(operation.outputs, body.outputs, strict=True)):
            out.append((outer, found, n >= made_from))
    return into, out


def _carried(operation: Operation) -> list[tuple[Value, Value]]:
    """(as it is given, as it comes out) of what a loop's body hands to its next turn."""
    (body,) = operation.bodies
    if operation.name == "scan":
        start, count = operation.params["num_consts"], operation.params["num_carry"]
    else:
        start, count = operation.params["body_nconsts"], len(body.outputs)
    return list(zip(body.inputs[start : start + count], body.outputs[:count], strict=True))


def _loop(operation: Operation, axes: Axes) -> None:
    into, out = _links(operation)
    for outer, inner, stacked in into:
        assign(axes, inner, outer.split[1:] if stacked else outer.split)
        inner.is_parameter = outer.is_parameter
    for body in operation.bodies:
        _forward(body, axes)
    if operation.name != "cond":
        for given, made in _carried(operation):
            assign(axes, given, made.split)
            assign(axes, made, given.split)
    for outer, found, stacked in out:
        assign(axes, outer, ((), *found.split) if stacked else found.split)


def _loop_back(operation: Operation, axes: Axes) -> None:
    into, out = _links(operation)
    for outer, found, stacked in out:
        assign(axes, found, outer.split[1:] if stacked else outer.split)
    if operation.name != "cond":
        for given, made in _carried(operation):
            assign(axes, given, made.split)
    for body in operation.bodies:
        _backward(body, axes)
    for outer, inner, stacked in into:
        assign(axes, outer, ((), *inner.split) if stacked else inner.split)
