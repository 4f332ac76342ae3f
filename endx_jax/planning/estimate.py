"""What one device holds, computes, moves and sends in a step: from the traced step, before anything is compiled."""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from endx_jax.models.dropout import example_keys
from endx_jax.parallel.execution import TOWERS
from endx_jax.parallel.memory import bytes_held
from endx_jax.parallel.sharding import BATCH_AXES, batch_sharding
from endx_jax.planning.exchanges import Exchange, exchanges_of
from endx_jax.planning.flops import program_flops
from endx_jax.planning.layout import lay_out
from endx_jax.planning.liveness import Liveness, Peak
from endx_jax.planning.operations import Operation, Program, Split, Value, read, split_by, walk
from endx_jax.planning.subject import Subject
from endx_jax.training.partition import split_frozen
from endx_jax.training.step import abstract_batch

# Collectives that sum.
REDUCING = ("all-reduce", "reduce-scatter")


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes on one device.

    Attributes:
      parameters: all of them; exact.
      optimizer: its state, and the step's number; exact.
      batch: as it is given; exact.
      embeddings: what the towers make of the batch; exact.
      gradients: of what is trained, once; exact.
      activations: of the towers when most is held, beside the embeddings; estimated.
      reduced: gradients that stand there before and after they are summed over devices, at that moment; estimated.
      losses: of the losses and of the update, at that moment; estimated.
      peak: of everything together; estimated.
    """

    parameters: int
    optimizer: int
    batch: int
    embeddings: int
    gradients: int
    activations: int
    reduced: int
    losses: int
    peak: int


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Collectives of one kind and purpose.

    Attributes:
      kind: as in `parallel.programs.KINDS`.
      what: `parameters`, `gradients`, `activations` or `losses`.
      axes: of the mesh.
      times: a step.
      bytes: of their results on one device, a step.
      sent: by one device, a step, round a ring.
    """

    kind: str
    what: str
    axes: tuple[str, ...]
    times: int
    bytes: int
    sent: int


@dataclasses.dataclass(frozen=True)
class Estimate:
    """What one device has to do with a step.

    Attributes:
      memory: in bytes.
      flops: of matrix products, what is computed again included.
      moved: bytes to and from its memory.
      traffic: with the other devices.
    """

    memory: Memory
    flops: int
    moved: int
    traffic: tuple[Traffic, ...]


def estimate(subject: Subject) -> Estimate:
    """Looks at the traced step of a run; nothing is compiled."""
    axes = subject.axes
    program = read(subject.trace().jaxpr)
    state = jax.tree.leaves(subject.step.state)
    _give_splits(program, subject, axes)
    known = [_split_of(leaf.sharding, len(leaf.shape), axes) for leaf in state]
    lay_out(program, axes, [*known, *[None] * (len(program.outputs) - len(known))])
    exchanges = exchanges_of(program, axes)
    liveness = Liveness(program, axes, exchanges, in_place=len(state))
    gradients = _gradients(program)
    return Estimate(
        memory=_memory(subject, gradients, liveness.peak()),
        flops=program_flops(program, axes),
        moved=liveness.moved(),
        traffic=_traffic(program, gradients, exchanges, axes),
    )


def _give_splits(program: Program, subject: Subject, axes: Mapping[str, int]) -> None:
    """Splits the program's inputs: the state's leaves as their shardings say, then the batch's by rows."""
    state = jax.tree.leaves(subject.step.state)
    shardings = [leaf.sharding for leaf in state] + [batch_sharding(subject.mesh)] * (len(program.inputs) - len(state))
    for value, sharding in zip(program.inputs, shardings, strict=True):
        value.split = _split_of(sharding, len(value.shape), axes)
    first = len(jax.tree.leaves(subject.step.state.step))
    for value in program.inputs[first : first + len(jax.tree.leaves(subject.step.state.params))]:
        value.is_parameter = True


def _split_of(sharding: NamedSharding, rank: int, axes: Mapping[str, int]) -> Split:
    return tuple(tuple(name for name in names if name in axes) for names in split_by(sharding.spec, rank))


def embeddings_of(subject: Subject):
    """Shapes, with shardings, of what the towers make of a batch."""
    size = subject.model.settings.train.global_batch_size
    keys = jax.eval_shape(lambda: example_keys(jax.random.key(0, impl="threefry2x32"), jnp.int32(0), size))
    rows = (subject.train_plan.stream.widest(), keys)
    found = jax.eval_shape(subject.model.objective.embed, subject.model.abstract_params(), rows)
    by_row = batch_sharding(subject.mesh)
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=by_row if x.shape else None), found)


def _memory(subject: Subject, gradients: set[Value], peak: Peak) -> Memory:
    state = subject.step.state
    trained, _ = split_frozen(state.params, subject.model.frozen)
    batch = abstract_batch(subject.batch, subject.mesh)
    embeddings = bytes_held([leaf for leaf in jax.tree.leaves(embeddings_of(subject)) if leaf.shape])
    given = bytes_held(state) + bytes_held(batch)
    at_peak: dict[str, int] = defaultdict(int)
    for one in peak.held:
        towers = TOWERS in one.source
        at_peak["reduced" if one.value in gradients else "activations" if towers else "losses"] += one.bytes
    return Memory(
        parameters=bytes_held(state.params),
        optimizer=bytes_held((state.step, state.opt_state)),
        batch=bytes_held(batch),
        embeddings=embeddings,
        gradients=bytes_held(trained),
        activations=max(0, at_peak["activations"] - embeddings),
        reduced=at_peak["reduced"],
        losses=at_peak["losses"],
        peak=given + max(peak.bytes, embeddings),
    )


def _gradients(program: Program) -> set[Value]:
    """The values that are a parameter's gradient, or become one by sums, casts and turns alone."""
    kept = {"add_any", "psum", "reduce_scatter", "convert_element_type", "transpose", "reshape", "squeeze", "enter",
            "leave", "sharding_constraint", "mul", "reduce_precision"}  # fmt: skip
    found = {value for operation in program.operations if "jvp(" not in operation.source for value in operation.inputs}
    for operation in reversed(program.operations):
        if found.intersection(operation.outputs) and "transpose(" in operation.source and operation.name in kept:
            found.update(operation.inputs)
    return found - set(program.inputs)


def _traffic(
    program: Program, gradients: set[Value], exchanges: Mapping[Operation, list[Exchange]], axes: Mapping[str, int]
) -> tuple[Traffic, ...]:
    found: dict[tuple, list[int]] = defaultdict(lambda: [0, 0, 0])
    for operation, times in walk(program):
        for exchange in exchanges.get(operation, ()):
            what = _purpose(operation, exchange, gradients)
            entry = found[exchange.kind, what, exchange.axes]
            for place, more in enumerate((1, exchange.bytes, _sent(exchange, axes))):
                entry[place] += times * more
    return tuple(Traffic(*key, *counts) for key, counts in sorted(found.items(), key=lambda item: -item[1][2]))


def _purpose(operation: Operation, exchange: Exchange, gradients: set[Value]) -> str:
    if exchange.value.is_parameter:
        return "parameters"
    by_rows = set(exchange.axes) <= set(BATCH_AXES)
    if exchange.value in gradients or (by_rows and TOWERS in operation.source and exchange.kind in REDUCING):
        return "gradients"
    return "activations" if TOWERS in operation.source else "losses"


def _sent(exchange: Exchange, axes: Mapping[str, int]) -> int:
    """Bytes that one device sends for a collective, round a ring."""
    devices = math.prod(axes[name] for name in exchange.axes)
    share = (devices - 1) / devices
    factor = {"all-reduce": 2 * share, "reduce-scatter": devices - 1}.get(exchange.kind, share)
    return round(factor * exchange.bytes)
