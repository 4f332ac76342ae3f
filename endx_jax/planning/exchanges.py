"""What the devices send each other in a traced step whose values are split: the collectives, by rule."""

import dataclasses
from collections.abc import Iterator, Mapping

from endx_jax.planning.operations import Operation, Program, Value, names_of
from endx_jax.planning.split_rules import REDUCTIONS, free_dimensions

# By JAX's names, which collectives a program has of its own.
KINDS = {
    "psum": "all-reduce",
    "pmax": "all-reduce",
    "pmin": "all-reduce",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all_to_all": "all-to-all",
    "ppermute": "collective-permute",
}


@dataclasses.dataclass(frozen=True)
class Exchange:
    """What one operation makes the devices send.

    Attributes:
      kind: as in `parallel.programs.KINDS`.
      bytes: of the result on one device, each time.
      axes: of the mesh, between whose devices it goes.
      value: what is gathered or reduced.
    """

    kind: str
    bytes: int
    axes: tuple[str, ...]
    value: Value


def exchanges_of(program: Program, axes: Mapping[str, int]) -> dict[Operation, list[Exchange]]:
    """What each operation makes the devices send; those of bodies, once each, are among them.

    Args:
      program: its values are split, see `layout.lay_out`.
      axes: sizes of the mesh's axes, of those longer than one.
    """
    found = {}
    for operation in program.operations:
        own = list(_exchanges(operation, axes))
        if own:
            found[operation] = own
        for body in operation.bodies:
            found |= exchanges_of(body, axes)
    return found


def _exchanges(operation: Operation, axes: Mapping[str, int]) -> Iterator[Exchange]:
    """What an operation makes the devices send, splits being as they are."""
    name, params = operation.name, operation.params
    if name == "dot_general":
        yield from _of_dot(operation, axes)
    elif name == "enter":
        (outer,), (inner,) = operation.inputs, operation.outputs
        spec = {n for entry in params["spec"] for n in names_of(entry)}
        more = tuple(n for names in outer.split for n in names if n in params["newly_manual_axes"] and n not in spec)
        if more:
            yield Exchange("all-gather", inner.bytes(axes), more, outer)
    elif name in KINDS:
        between = names_of(params.get("axes") or params.get("axis_name"))
        between = tuple(n for n in between if n in axes)
        for value in operation.outputs if between else ():
            yield Exchange(KINDS[name], value.bytes(axes), between, value)
    elif name == "sharding_constraint":
        (value,), (result,) = operation.inputs, operation.outputs
        kept = {n for names in result.split for n in names}
        more = tuple(n for names in value.split for n in names if n not in kept)
        if more:
            yield Exchange("all-gather", result.bytes(axes), more, value)
    elif name in REDUCTIONS:
        (value,), result = operation.inputs, operation.outputs[0]
        lost = tuple(n for d in params["axes"] for n in value.split[d])
        if lost:
            yield Exchange("all-reduce", result.bytes(axes), lost, result)
    elif name in ("gather", "scatter-add"):
        yield from _of_rows(operation, axes)


def _of_dot(operation: Operation, axes: Mapping[str, int]) -> Iterator[Exchange]:
    left, right = operation.inputs
    (result,) = operation.outputs
    (contracted, _) = operation.params["dimension_numbers"]
    made = {n for names in result.split for n in names}
    reduced: set[str] = set()
    for a, b in zip(*contracted, strict=True):
        both = {*left.split[a], *right.split[b]}
        # A parameter's part is brought together before, an activation's product after.
        one_sided = {n for n in both if (n in left.split[a]) != (n in right.split[b])}
        weights = {n for v, d in ((left, a), (right, b)) if v.is_parameter for n in v.split[d] if n in one_sided}
        reduced |= both - weights
    for value, other in ((left, right), (right, left)):
        used = {n for names in other.split for n in names}
        gone = tuple(
            n
            for d, names in enumerate(value.split)
            for n in names
            if n not in reduced and (n not in made or (n in used and _lost(operation, value, d, n)))
        )
        if gone:
            whole = tuple(tuple(n for n in names if n not in gone) for names in value.split)
            yield Exchange("all-gather", value.bytes(axes, whole), gone, value)
    if reduced:
        scattered = made & reduced
        if scattered:
            yield Exchange("reduce-scatter", result.bytes(axes), tuple(sorted(reduced)), result)
        else:
            yield Exchange("all-reduce", result.bytes(axes), tuple(sorted(reduced)), result)


def _lost(operation: Operation, value: Value, dimension: int, name: str) -> bool:
    """Whether an axis of an operand's dimension stands elsewhere in the result, for the other operand's sake."""
    side = 0 if operation.inputs[0] is value else 1
    (contracted, batch) = operation.params["dimension_numbers"]
    if dimension in contracted[side]:
        return True
    (result,) = operation.outputs
    if dimension in batch[side]:
        place = list(batch[side]).index(dimension)
    else:
        before = len(batch[0]) + (len(free_dimensions(operation, 0)) if side else 0)
        place = before + free_dimensions(operation, side).index(dimension)
    return name not in result.split[place]


def _of_rows(operation: Operation, axes: Mapping[str, int]) -> Iterator[Exchange]:
    """Of look-ups in a table, and of the gradient of that."""
    table, (result,) = operation.inputs[0], operation.outputs
    if operation.name == "gather":
        if not table.is_parameter:
            return
        kept = {n for names in result.split for n in names}
        rows = table.split[0]
        if rows:  # each device looks up what it has, and the others add nothing
            yield Exchange("all-reduce", result.bytes(axes), rows, result)
        gone = tuple(n for names in table.split[1:] for n in names if n in kept and n not in result.split[-1])
        if gone:
            whole = tuple(tuple(n for n in names if n not in gone) for names in table.split)
            yield Exchange("all-gather", table.bytes(axes, whole), gone, table)
        return
    updates = operation.inputs[2]
    reduced = tuple(n for names in updates.split[:-1] for n in names)
    if reduced:
        made = {n for names in result.split for n in names}
        kind = "reduce-scatter" if made & set(reduced) else "all-reduce"
        yield Exchange(kind, result.bytes(axes), reduced, result)
