"""What a device holds at most while a step runs, from the traced step alone: an estimate of the compiler's choices.

Compilers fuse what is computed entry by entry into whatever reads it, so most values never stand in memory. Here a
value does when something has to read it from there (a product, a loop, a sort), or when it is dear to compute and read
more than once; everything else is computed again where it is needed, from the values that do.
"""

import dataclasses
from collections.abc import Mapping

from endx_jax.planning.exchanges import KINDS, Exchange
from endx_jax.planning.operations import Operation, Program, Value

# Other views of the same memory.
VIEWS = {"reshape", "squeeze", "expand_dims", "copy", "enter", "leave", "optimization_barrier", "sharding_constraint",
         "reshard", "name", "random_wrap", "random_unwrap"}  # fmt: skip
# Read their operands from memory, and write their results there.
HEAVY = {"dot_general", "conv_general_dilated", "sort", "cumsum", "cummax", "cumlogsumexp", "scatter", "scatter-add",
         "top_k", "scan", "while", "cond", *KINDS}  # fmt: skip
# Write their results there.
WRITERS = {"random_bits", "random_seed", "random_fold_in", "random_split", "reduce_sum", "reduce_max", "reduce_min",
           "reduce_or", "reduce_and", "reduce_prod", "argmax", "argmin"}  # fmt: skip
# Not computed twice.
DEAR = {"exp", "exp2", "log", "log1p", "expm1", "tanh", "erf", "erf_inv", "logistic", "pow", "div", "sqrt", "rsqrt",
        "sin", "cos", "rem", "gather", "concatenate"}  # fmt: skip
# Never written.
FREE = {"broadcast_in_dim", "iota"}


@dataclasses.dataclass(frozen=True)
class Held:
    """A value in memory.

    Attributes:
      value: which.
      bytes: on one device.
      source: of the operation that made it, as JAX names it.
    """

    value: Value
    bytes: int
    source: str


@dataclasses.dataclass(frozen=True)
class Peak:
    """What one device holds when it holds most, beside the program's inputs.

    Attributes:
      bytes: of all.
      held: what that is.
    """

    bytes: int
    held: tuple[Held, ...]


class Liveness:
    """Which values of a program stand in memory, and from when to when."""

    def __init__(
        self,
        program: Program,
        axes: Mapping[str, int],
        exchanges: Mapping[Operation, list[Exchange]],
        in_place: int = 0,
    ):
        """Decides what stands in memory.

        Args:
          program: its values are split.
          axes: sizes of the mesh's axes, of those longer than one.
          exchanges: of its operations.
          in_place: so many outputs are written where the inputs of the same number stand.
        """
        self._program, self._axes, self._exchanges = program, axes, exchanges
        self._operations = _needed(program)
        self._maker = {value: operation for operation in self._operations for value in operation.outputs}
        self._readers: dict[Value, list[Operation]] = {}
        for operation in self._operations:
            for value in operation.inputs:
                self._readers.setdefault(value, []).append(operation)
        self._stands = self._standing()
        self._free = {self._base(value) for value in program.outputs[:in_place]}
        self._sources: dict[Value, frozenset[Value]] = {}
        self._bodies: dict[Program, Liveness] = {}

    def peak(self) -> Peak:
        """Runs through the program."""
        events = self._events()
        reads = [
            frozenset().union(*(self._read(v) for operation in event for v in operation.inputs)) for event in events
        ]
        last = {value: number for number, values in enumerate(reads) for value in values}
        last |= {value: len(events) for v in self._program.outputs for value in self._read(v)}
        held: dict[Value, int] = {}
        now, best = 0, Peak(0, ())
        for number, event in enumerate(events):
            dying = [value for value in reads[number] if last[value] == number and value in held]
            in_their_place = event[0].name not in HEAVY
            if in_their_place:
                now -= sum(held.pop(value) for value in dying)
            made = [value for operation in event for value in operation.outputs if value in last]
            made = [value for value in made if value in self._stands]
            held |= {value: self._bytes(value) for value in made}
            now += sum(held[value] for value in made)
            inside = self._inside(event)
            if now + inside.bytes > best.bytes:
                own = (Held(value, size, self._source(value)) for value, size in held.items())
                best = Peak(now + inside.bytes, (*own, *inside.held))
            gone = [] if in_their_place else dying
            now -= sum(held.pop(value) for value in gone)
        return best

    def moved(self) -> int:
        """Bytes that are read from memory and written there, loops as often as they run."""
        total = 0
        for event in self._events():
            for operation in event:
                for body in operation.bodies:
                    total += (operation.trips or 1) * self._of(body).moved()
                if not operation.bodies:
                    read = frozenset().union(*(self._read(v) for v in operation.inputs))
                    total += sum(v.bytes(self._axes) for v in {*read, *operation.outputs})
        return total

    def _of(self, body: Program) -> "Liveness":
        """The same for a loop's body."""
        if body not in self._bodies:
            self._bodies[body] = Liveness(body, self._axes, self._exchanges)
        return self._bodies[body]

    def _bytes(self, value: Value) -> int:
        if value in self._free:
            return 0
        # Threefry makes two words for each, and only what reads them adds the two up.
        words = 2 if value in self._maker and self._maker[value].name == "random_bits" else 1
        return words * value.bytes(self._axes)

    def _source(self, value: Value) -> str:
        made = self._maker[value]
        return f"{made.source}/{made.name}"

    def _is_view(self, operation: Operation) -> bool:
        if operation.name == "transpose":  # products take matrices either way round
            return len(operation.params["permutation"]) == 2
        return operation.name in VIEWS and operation not in self._exchanges

    def _base(self, value: Value) -> Value:
        """What a view is a view of."""
        while (made := self._maker.get(value)) is not None and self._is_view(made):
            value = made.inputs[0]
        return value

    def _users(self, value: Value) -> list[Operation]:
        """What reads a value, by whatever view."""
        found = []
        for operation in self._readers.get(value, ()):
            found += self._users(operation.outputs[0]) if self._is_view(operation) else [operation]
        return found

    def _is_heavy(self, operation: Operation) -> bool:
        return operation.name in HEAVY or operation in self._exchanges

    def _standing(self) -> set[Value]:
        """The values that are written to memory."""
        outputs = {self._base(value) for value in self._program.outputs}
        found = set(self._program.inputs)
        # What is written from each value in the end, when all that is cheap is computed wherever it is needed.
        written: dict[Value, set[Operation]] = {}
        for operation in reversed(self._operations):
            ends: set[Operation] = set()
            for value in operation.outputs:
                uses = written.get(value, set())
                if not self._is_view(operation) and (
                    operation.name in WRITERS
                    or self._is_heavy(operation)
                    or value in outputs
                    or (operation.name in DEAR and len(uses) > 1)
                    or (operation.name not in FREE and any(map(self._is_heavy, self._users(value))))
                ):
                    found.add(value)
                    ends.add(operation)
                else:
                    ends |= uses
            for value in operation.inputs:
                written.setdefault(value, set()).update(ends)
        return found

    def _read(self, value: Value) -> frozenset[Value]:
        """The values in memory that one is computed from."""
        stack = [value]
        while stack:
            top = stack[-1]
            made = self._maker.get(top)
            operands = [] if made is None or top in self._stands else made.inputs
            missing = [v for v in operands if v not in self._sources]
            if missing:
                stack += missing
                continue
            own = frozenset([top]) if top in self._stands else frozenset[Value]()
            self._sources[stack.pop()] = own.union(*(self._sources[v] for v in operands))
        return self._sources[value]

    def _events(self) -> list[list[Operation]]:
        """What is done at a time: sums over devices that follow each other are one."""
        events: list[list[Operation]] = []
        for operation in self._operations:
            if not self._stands.intersection(operation.outputs):
                continue
            if events and operation.name == events[-1][0].name == "psum":
                events[-1].append(operation)
            else:
                events.append([operation])
        return events

    def _inside(self, event: list[Operation]) -> Peak:
        """What an operation holds only while it runs: a loop's body, or parameters that are gathered for it."""
        (operation, *_) = event
        bodies = (self._of(body).peak() for body in operation.bodies)
        best = max(bodies, key=lambda peak: peak.bytes, default=Peak(0, ()))
        gathered = [e for e in self._exchanges.get(operation, ()) if e.kind == "all-gather"]
        if operation.name != "dot_general" or not gathered:
            return best
        held = tuple(Held(exchange.value, exchange.bytes, f"{operation.source}/all-gather") for exchange in gathered)
        return Peak(sum(one.bytes for one in held), held)


def _needed(program: Program) -> list[Operation]:
    """The operations that the outputs depend on."""
    wanted = set(program.outputs)
    kept = []
    for operation in reversed(program.operations):
        if wanted.intersection(operation.outputs):
            wanted.update(operation.inputs)
            kept.append(operation)
    return kept[::-1]
