"""Several processes: initialization from the environment, and coordination outside of the training step."""

import os
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable

import jax
import numpy as np

from endx_jax.errors import EndxError, RunInterrupted
from endx_jax.parallel.environment import find_place

BARRIER_MILLISECONDS = 24 * 3600 * 1000  # effectively no limit: JAX's heartbeats detect a dead process
FAREWELL_SECONDS = 5.0  # that process 0 outlives a joint end, so that JAX does not abort the others before theirs
INTERRUPTED = 130  # the exit status after Ctrl-C, which all processes are given
LONGEST_MESSAGE = 2048  # bytes of a failure that all processes are told

_meetings: Counter[str] = Counter()  # how often each barrier was come to, the same on every process


def initialize() -> None:
    """Joins the other processes named by the environment, if any; call this before any device is used.

    `find_place` lists the variables read. From then on JAX monitors the processes: it aborts this one (SIGABRT, status
    134) when another one dies, stops or does not start; docs/faults.md has the times.

    Raises:
      EndxError: the environment contradicts itself, or the port of process 0 is taken.
      RunInterrupted: the first host of a TPU pod has no address yet.
    """
    if jax.distributed.is_initialized():
        return
    place = find_place()
    if place is None:
        return
    if place.index == 0:
        _check_port(place.address)
    # JAX's preemption service would keep SIGTERM to itself: `training/preemption.py` handles it.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        place.address,
        num_processes=place.count,
        process_id=place.index,
        cluster_detection_method="deactivate",  # JAX's detection would use one GPU for each SLURM task
    )


def leave(status: int) -> None:
    """Ends this process at once if it is one of several, without JAX's shutdown.

    The shutdown waits for all processes. When one is still in a collective it times out, and JAX aborts: the status
    would be 134, which is retried, in place of a user error's 2.
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
    """Returns true on the process that prints and writes."""
    return jax.process_index() == 0


def on_primary(action: Callable[[], None], name: str) -> None:
    """Runs `action` on the primary process while the others wait for it.

    Args:
      action: the function to run.
      name: identifies the barrier.

    Raises:
      EndxError: raised by `action`, on every process.
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
    """Returns true if a condition holds on every process; every process must call this."""
    if jax.process_count() == 1:
        return holds
    from jax.experimental import multihost_utils

    return bool(np.all(multihost_utils.process_allgather(np.array(holds))))


def barrier(name: str) -> None:
    """Waits without a time limit until every process has reached this point.

    It does not use collectives of devices, which time out after half a minute on CPUs.
    """
    if jax.process_count() > 1:
        from orbax.checkpoint import multihost

        _meetings[name] += 1
        multihost.get_barrier_sync_fn()(key=f"endx_jax/{name}/{_meetings[name]}", timeout_ms=BARRIER_MILLISECONDS)


def _check_port(address: str) -> None:
    """Raises EndxError if the port is taken; JAX would end with a segmentation fault and no message."""
    port = int(address.rpartition(":")[2])
    try:
        socket.create_server(("", port)).close()
    except OSError as failure:
        reason = os.strerror(failure.errno or 0)
        raise EndxError(
            f"process 0 can't listen on port {port} ({reason}): another run may have it; choose another port"
        ) from None


def _shared(failure: EndxError | RunInterrupted | None) -> EndxError | RunInterrupted | None:
    """Returns the primary's failure on every process: its message, and whether the same command resumes."""
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
