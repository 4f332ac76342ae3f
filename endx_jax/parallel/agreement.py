"""Agreement of several processes, which may see different contents of the files that they share.

What all processes must do alike is decided by the primary process and told to the others (`broadcast`); no other
process reads it from files. Where all must read files that one of them writes, all wait for the write (`on_primary`,
`run_on_all`) and compare what they have read (`check_equal`, `check_parameters`). docs/faults.md lists every case.

Values go through the key-value store of JAX's coordination service, which needs no compiled program and lets a process
wait for a day; collectives on CPUs time out after half a minute. Every process must call these functions with the same
names in the same order. Inside an action of the primary, in the same thread, they act as in a single process.
"""

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from endx_jax.errors import Disagreement, DiskFull, EndxError, InUse, RunInterrupted
from endx_jax.parallel.distributed import client, is_primary

T = TypeVar("T")
UNLIMITED = 24 * 3600 * 1000  # milliseconds; JAX's heartbeats detect a dead process
KINDS = {kind.__name__: kind for kind in (EndxError, DiskFull, InUse, RunInterrupted)}

_calls: Counter[str] = Counter()  # calls by name, the same on every process, which make keys unique
_thread = threading.local()  # `acts` is true while a thread runs an action of the primary


def is_distributed() -> bool:
    """Returns true if other processes take part in what this one does now."""
    return jax.distributed.is_initialized() and not getattr(_thread, "acts", False)


def broadcast(decide: Callable[[], T], name: str) -> T:
    """Returns what `decide` returns on the primary process, on every process.

    Args:
      decide: function that only the primary calls. With several processes its value passes through JSON.
      name: key of the decision, the same on every process.

    Raises:
      EndxError, RunInterrupted: `decide` raised it; it is raised on every process. Any other exception is raised on the
        primary only, and ends all processes (`distributed.exit_after`).
    """
    if not is_distributed():
        return decide()
    key, failure = _key(name), None
    if is_primary():
        _thread.acts, value = True, None
        try:
            value = decide()
        except (EndxError, RunInterrupted) as raised:
            failure = raised
        finally:
            _thread.acts = False
        client().key_value_set(key, json.dumps([value, _described(failure)]))
    value, described = _get(key)
    _raise_first(failure, [described])
    return value


def on_primary(action: Callable[[], None], name: str) -> None:
    """Runs `action` on the primary process while the others wait for it; raises its errors as `broadcast` does."""
    broadcast(action, name)


def all_gather(value: T, name: str) -> list[T]:
    """Returns the values of all processes, which JSON must be able to hold, in the order of the processes."""
    if not is_distributed():
        return [value]
    key = _key(name)
    client().key_value_set(f"{key}/{jax.process_index()}", json.dumps(value))
    return broadcast(lambda: [_get(f"{key}/{process}") for process in range(jax.process_count())], name)


def run_on_all(action: Callable[[], None], name: str) -> None:
    """Runs `action` on every process and waits for all; an EndxError or RunInterrupted of one is raised on all."""
    failure = None
    try:
        action()
    except (EndxError, RunInterrupted) as raised:
        failure = raised
    _raise_first(failure, all_gather(_described(failure), name))


def check_equal(values: Callable[[], Mapping[str, str]]) -> None:
    """Checks that named values, such as hashes, are the same on every process, or raises EndxError.

    `values` computes them by name; a single process does not call it.
    """
    local = dict(values()) if is_distributed() else {}
    first = broadcast(lambda: local, "first-values")

    def compare() -> None:
        for name, value in first.items():
            here = local.get(name, "none")
            if here != value:
                raise EndxError(
                    f"another {name} than in process 0 ({here[:64]} and {value[:64]}): run the same command with the "
                    "same files and versions on every host"
                )

    run_on_all(compare, "equal")


def check_parameters(params: Any, step: int = 0) -> None:
    """Checks that every process holds the same step and values, by checksums, or raises Disagreement.

    Args:
      params: tree of arrays. A checksum is that of a whole array, so copies on different processes are compared; parts
        of an array that is split over processes have no copies to compare.
      step: step of the parameters; 0 for those of a model that is not in training.
    """
    first, *others = all_gather(f"step {step}, checksum {_digest(params)}", "parameters") if is_distributed() else [""]
    for process, other in enumerate(others, 1):
        if other != first:
            raise Disagreement(
                f"process {process} holds other parameters than process 0 ({other} and {first}): use the same weights "
                "on every host; if they are the same, report this"
            )


def _digest(params: Any) -> str:
    """Returns a hash of the checksums of all arrays, as the local devices compute them."""
    checksums = [[np.asarray(part.data) for part in _checksum(x).addressable_shards] for x in jax.tree.leaves(params)]
    of_devices = {np.asarray(column).tobytes() for column in zip(*checksums, strict=True)}
    return hashlib.sha256(b"".join(sorted(of_devices))).hexdigest()[:16]


@jax.jit
def _checksum(x: jax.Array) -> jax.Array:
    """Returns the uint32 sum of an array's words, each times an odd number that depends on its place."""
    words = jax.lax.bitcast_convert_type(x, jnp.dtype(f"uint{8 * x.dtype.itemsize}")).astype(jnp.uint32)
    place = jnp.zeros(x.shape, jnp.uint32)
    for axis, size in enumerate(x.shape):
        place = place * np.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis)
    return jnp.sum(words * (2 * place + 1), dtype=jnp.uint32)


def _key(name: str) -> str:
    _calls[name] += 1
    return f"endx_jax/{name}/{_calls[name]}"


def _get(key: str) -> Any:
    return json.loads(client().blocking_key_value_get(key, UNLIMITED))


def _described(failure: Exception | None) -> list[str]:
    """Returns type and message of an error for the other processes; empty without one."""
    kind = type(failure).__name__
    return [kind if kind in KINDS else EndxError.__name__, str(failure)] if failure else []


def _raise_first(own: Exception | None, described: list[list[str]]) -> None:
    """Raises this process's error, or else that of the first process that has one, if any."""
    if own:
        raise own
    for process, failure in enumerate(described):
        if failure:
            raise KINDS[failure[0]](f"process {process}: {failure[1]}")
