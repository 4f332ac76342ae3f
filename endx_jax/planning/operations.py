"""A traced function as one list of operations on values, calls inlined and loops with bodies of their own.

Values carry how their dimensions are split over the mesh; `layout.py` finds that out.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

# The mesh axes that each dimension is split over.
Split = tuple[tuple[str, ...], ...]
# What a call's jaxpr is called among its parameters.
BODIES = ("jaxpr", "call_jaxpr", "fun_jaxpr")


@dataclasses.dataclass(eq=False)
class Value:
    """An array of a traced function.

    Attributes:
      shape: of the whole array; inside a `shard_map` of a device's part.
      dtype: of JAX; random keys included.
      split: the mesh axes that each dimension is split over.
      is_parameter: whether it is a parameter of the model, or one that was merely cast or turned.
    """

    shape: tuple[int, ...]
    dtype: Any
    split: Split = ()
    is_parameter: bool = False

    def __post_init__(self):
        self.split = self.split or ((),) * len(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an entry; a random key has eight."""
        return 8 if jax.dtypes.issubdtype(self.dtype, jax.dtypes.prng_key) else self.dtype.itemsize

    def bytes(self, axes: Mapping[str, int], split: Split | None = None) -> int:
        """On one device of a mesh with axes of these sizes, split as `split` says or as it is."""
        parts = [math.prod(axes[name] for name in names) for names in (self.split if split is None else split)]
        return self.itemsize * math.prod(-(-n // part) for n, part in zip(self.shape, parts, strict=True))


@dataclasses.dataclass(eq=False)
class Operation:
    """One operation.

    Attributes:
      name: of JAX's primitive; `enter` and `leave` at the bounds of a `shard_map`.
      inputs: its operands; constants are values that nothing made.
      outputs: its results.
      params: of the primitive.
      source: JAX's name stack, from the outermost call on.
      bodies: of a loop one program, of a condition one a branch.
      trips: how often a body runs; None where that is not known.
    """

    name: str
    inputs: list[Value]
    outputs: list[Value]
    params: Mapping[str, Any]
    source: str = ""
    bodies: tuple["Program", ...] = ()
    trips: int | None = 1


@dataclasses.dataclass(eq=False)
class Program:
    """Operations in the order in which they were traced.

    Attributes:
      inputs: values that are given; a loop's body has inputs of its own.
      operations: all that is done.
      outputs: what it returns.
    """

    inputs: list[Value]
    operations: list[Operation]
    outputs: list[Value]


def read(jaxpr: ClosedJaxpr) -> Program:
    """The program of a traced function, such as `jitted.trace(*shapes).jaxpr`."""
    inputs = [_value(variable) for variable in jaxpr.jaxpr.invars]
    operations: list[Operation] = []
    outputs = _inline(jaxpr.jaxpr, inputs, operations, "")
    return Program(inputs, operations, outputs)


def walk(program: Program, times: int = 1) -> Iterator[tuple[Operation, int]]:
    """All operations, those in bodies too, and how often each runs; a loop of unknown length counts once."""
    for operation in program.operations:
        yield operation, times
        for body in operation.bodies:
            yield from walk(body, times * (operation.trips or 1))


def _value(variable: Any) -> Value:
    return Value(tuple(variable.aval.shape), variable.aval.dtype)


def _inline(jaxpr: Jaxpr, inputs: list[Value], operations: list[Operation], source: str) -> list[Value]:
    """Appends the operations of a jaxpr that is given these inputs; returns its outputs."""
    known: dict[Any, Value] = dict(zip(jaxpr.invars, inputs, strict=True))
    known |= {variable: _value(variable) for variable in jaxpr.constvars}

    def look_up(atom) -> Value:
        return _value(atom) if isinstance(atom, Literal) else known[atom]

    for equation in jaxpr.eqns:
        given = [look_up(atom) for atom in equation.invars]
        name, params = equation.primitive.name, equation.params
        own = f"{source}/{equation.source_info.name_stack}"
        if name == "shard_map":
            found = _enter(params, given, operations, own)
        elif name in ("scan", "while", "cond"):
            found = [_value(variable) for variable in equation.outvars]
            operations.append(_with_bodies(name, given, found, params, own))
        elif body := next((params[key] for key in BODIES if key in params), None):
            found = _inline(_open(body), given, operations, own)
        else:
            found = [_value(variable) for variable in equation.outvars]
            operations.append(Operation(name, given, found, params, own))
        known |= dict(zip(equation.outvars, found, strict=True))
    return [look_up(atom) for atom in jaxpr.outvars]


def _open(body) -> Jaxpr:
    return body.jaxpr if isinstance(body, ClosedJaxpr) else body


def _with_bodies(name: str, given, found, params, source: str) -> Operation:
    """A loop or condition as an operation with bodies."""
    if name == "cond":
        bodies = [_open(branch) for branch in params["branches"]]
    else:
        bodies = [_open(params["jaxpr" if name == "scan" else "body_jaxpr"])]
    programs = []
    for body in bodies:
        inputs = [_value(variable) for variable in body.invars]
        operations: list[Operation] = []
        outputs = _inline(body, inputs, operations, source)
        programs.append(Program(inputs, operations, outputs))
    trips = {"scan": params.get("length"), "while": None, "cond": 1}[name]
    return Operation(name, given, found, params, source, tuple(programs), trips)


def _enter(params, given: list[Value], operations: list[Operation], source: str) -> list[Value]:
    """Inlines the body of a `shard_map`, which sees a device's part of what is split over the axes it handles."""
    body = _open(params["jaxpr"])
    inside: list[Value] = []
    for outer, variable, spec in zip(given, body.invars, params["in_specs"], strict=True):
        inner = _value(variable)
        operations.append(Operation("enter", [outer], [inner], {**params, "spec": spec}, source))
        inside.append(inner)
    found = _inline(body, inside, operations, source)
    left: list[Value] = []
    sizes = dict(params["mesh"].shape)
    for inner, spec in zip(found, params["out_specs"], strict=True):
        shape = list(inner.shape)
        for dimension, names in enumerate(spec):
            shape[dimension] *= math.prod(sizes[name] for name in names_of(names))
        whole = Value(tuple(shape), inner.dtype)
        operations.append(Operation("leave", [inner], [whole], {**params, "spec": spec}, source))
        left.append(whole)
    return left


def names_of(entry) -> tuple[str, ...]:
    """The axes in one entry of a `PartitionSpec`."""
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)


def split_by(spec: Iterable, rank: int) -> list[tuple[str, ...]]:
    """The axes of each of `rank` dimensions, by a `PartitionSpec`, which may leave out the last ones."""
    split = [names_of(entry) for entry in spec]
    return split + [()] * (rank - len(split))
