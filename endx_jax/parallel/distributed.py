"""Several processes: set up from the environment, and the few things that they agree on outside the step."""

import os
import sys
import time
from collections import Counter
from collections.abc import Callable

import jax
import numpy as np

from endx_jax.errors import EndxError, RunInterrupted
from endx_jax.parallel.abort import on_abort
from endx_jax.parallel.environment import find_place
from endx_jax.parallel.roll_call import roll_call

JOIN_TIMEOUT, JOIN_SECONDS = "ENDX_JOIN_TIMEOUT", 300.0

# Seconds that JAX waits for a silent process before it aborts the others. `parallel/heartbeats.py` is quicker, and says
# which process it is; this is for what has no heartbeats.
JAX_PATIENCE = 600

BARRIER_MILLISECONDS = 24 * 3600 * 1000  # of patience: whoever is gone is noticed by other means
FAREWELL_SECONDS = 5.0  # a little more than two heartbeats
INTERRUPTED = 130  # the exit status after Ctrl-C, which all processes are given
LONGEST_MESSAGE = 2048  # bytes of a failure that all processes are told

_meetings: Counter[str] = Counter()  # how often each barrier was come to, the same on every process


def initialize() -> None:
    """Joins the other processes when the environment says that there are any; call before anything touches a device.

    `find_place` says where it looks. Where some processes are missing after `ENDX_JOIN_TIMEOUT` seconds (300), the
    others end.

    Raises:
      RunInterrupted: when processes are missing, with their numbers.
      EndxError: when the environment contradicts itself.
    """
    if jax.distributed.is_initialized():
        return
    timeout = _join_timeout()
    place = find_place(timeout)
    if place is None:
        return
    roll_call(place, timeout)
    on_abort(
        lambda: "JAX has aborted this process, as it does when process 0 is gone: see its log; the same command goes on"
    )
    # It would take SIGTERM for itself, for good: `training/preemption.py` heeds that.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        place.address,
        num_processes=place.count,
        process_id=place.index,
        cluster_detection_method="deactivate",  # it is done: JAX would take one GPU for each task of SLURM's
        initialization_timeout=int(timeout) + 1,
        heartbeat_timeout_seconds=JAX_PATIENCE,
    )


def leave(status: int) -> None:
    """Ends this process at once where it is one of several: JAX would wait at the exit for others that wait for it.

    JAX aborts the others when process 0 is gone, so that one stays until they have read why in its last heartbeat.
    """
    if not jax.distributed.is_initialized():
        return
    try:
        sys.stdout.flush()
        sys.stderr.flush()
        if is_primary() and status != INTERRUPTED:
            time.sleep(FAREWELL_SECONDS)
    finally:
        os._exit(status)


def is_primary() -> bool:
    """Whether this process is the one that prints and writes."""
    return jax.process_index() == 0


def on_primary(action: Callable[[], None], name: str) -> None:
    """Runs `action` on the primary process while the others wait for it.

    Args:
      action: what to do.
      name: identifies the meeting point.

    Raises:
      EndxError: that `action` raised, on every process.
    """
    failure: EndxError | RunInterrupted | None = None
    if is_primary():
        try:
            action()
        except (EndxError, RunInterrupted) as raised:
            failure = raised
    if jax.process_count() > 1:
        barrier(name)
        failure = _shared(failure)
    if failure:
        raise failure


def everywhere(holds: bool) -> bool:
    """Whether something holds on every process; each has to ask."""
    if jax.process_count() == 1:
        return holds
    from jax.experimental import multihost_utils

    return bool(np.all(multihost_utils.process_allgather(np.array(holds))))


def barrier(name: str) -> None:
    """Waits until every process has come here, for as long as it takes; devices have no part in it.

    Collectives of devices are no place to wait in: on CPUs they give up after half a minute.
    """
    if jax.process_count() > 1:
        from orbax.checkpoint import multihost

        _meetings[name] += 1
        multihost.get_barrier_sync_fn()(key=f"endx_jax/{name}/{_meetings[name]}", timeout_ms=BARRIER_MILLISECONDS)


def _shared(failure: EndxError | RunInterrupted | None) -> EndxError | RunInterrupted | None:
    """The primary's failure on every process: its words, and whether the same command goes on."""
    from jax.experimental import multihost_utils

    kind, text = 0, b""
    if failure:
        kind, text = (2 if isinstance(failure, RunInterrupted) else 1), str(failure).encode()[:LONGEST_MESSAGE]
    message = np.zeros(1 + LONGEST_MESSAGE, np.uint8)
    message[0], message[1 : 1 + len(text)] = kind, np.frombuffer(text, np.uint8)
    told = np.asarray(multihost_utils.broadcast_one_to_all(message))
    if is_primary() or not told[0]:
        return failure
    words = told[1:].tobytes().rstrip(b"\0").decode(errors="replace")
    return (RunInterrupted if told[0] == 2 else EndxError)(words)


def _join_timeout() -> float:
    try:
        seconds = float(os.environ.get(JOIN_TIMEOUT, JOIN_SECONDS))
    except ValueError:
        seconds = 0.0
    if seconds <= 0:
        raise EndxError(f"{JOIN_TIMEOUT} is {os.environ[JOIN_TIMEOUT]!r}; it takes seconds, above 0")
    return seconds
