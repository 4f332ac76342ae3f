"""Distributed processes: initialization from the environment, barriers and shared failures."""

import os
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable

import jax
import numpy as np

from endx_jax.errors import EndxError, RunInterrupted
from endx_jax.parallel.environment import read_environment

BARRIER_MILLISECONDS = 24 * 3600 * 1000  # effectively unlimited, since JAX's heartbeats detect a dead process
PRIMARY_EXIT_DELAY = 5.0  # seconds: process 0 exits last, since JAX aborts the other processes when it is gone
MAX_MESSAGE_BYTES = 2048  # length at which the message of a failure is cut before it is sent to all processes

_barrier_counts: Counter[str] = Counter()  # number of calls of each barrier, the same on every process


def initialize() -> None:
    """Connects to the other processes that the environment names, if any; must be called before any device is used.

    `read_environment` lists the variables. After this call, JAX aborts this process (SIGABRT, status 134) if another
    one dies, hangs or does not connect; docs/faults.md lists the timeouts.

    Raises:
      EndxError: the variables contradict each other, or the port of process 0 is in use.
      RunInterrupted: the first host of a TPU pod has no address yet.
    """
    if jax.distributed.is_initialized():
        return
    config = read_environment()
    if config is None:
        return
    if config.process_id == 0:
        _check_port(config.coordinator_address)
    # `training/preemption.py` handles SIGTERM; JAX's preemption service would replace its handler.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        config.coordinator_address,
        num_processes=config.num_processes,
        process_id=config.process_id,
        cluster_detection_method="deactivate",  # JAX's detection would use one GPU for each SLURM task
    )


def exit_if_distributed(status: int) -> None:
    """Exits at once without JAX's shutdown if this is one of several processes; returns otherwise.

    JAX's shutdown waits for all processes. If one of them is still in a collective, the shutdown times out and aborts
    with status 134, which launchers retry, instead of the 2 of a user error.
    """
    if not jax.distributed.is_initialized():
        return
    try:
        sys.stdout.flush()
        sys.stderr.flush()
        if is_primary():
            time.sleep(PRIMARY_EXIT_DELAY)
    finally:
        os._exit(status)


def is_primary() -> bool:
    """Returns true on process 0, which prints and writes files."""
    return jax.process_index() == 0


def on_primary(action: Callable[[], None], name: str) -> None:
    """Runs `action` on the primary process while the others wait for it.

    Args:
      action: function to run.
      name: name of the barrier.

    Raises:
      EndxError, RunInterrupted: `action` raised it; it is raised on every process.
    """
    failure: EndxError | RunInterrupted | None = None
    if is_primary():
        try:
            action()
        except (EndxError, RunInterrupted) as raised:
            failure = raised
    if jax.process_count() > 1:
        barrier(name)
        failure = _broadcast(failure)
    if failure:
        raise failure


def all_processes(condition: bool) -> bool:
    """Returns true if a condition is true on every process; every process must call this."""
    if jax.process_count() == 1:
        return condition
    from jax.experimental import multihost_utils

    return bool(np.all(multihost_utils.process_allgather(np.array(condition))))


def barrier(name: str) -> None:
    """Waits without a time limit until every process has called this.

    Does not use device collectives, which time out after half a minute on CPUs.
    """
    if jax.process_count() > 1:
        from orbax.checkpoint import multihost

        _barrier_counts[name] += 1
        multihost.get_barrier_sync_fn()(key=f"endx_jax/{name}/{_barrier_counts[name]}", timeout_ms=BARRIER_MILLISECONDS)


def _check_port(address: str) -> None:
    """Raises EndxError if the port is in use, in which case JAX would end with a segmentation fault."""
    port = int(address.rpartition(":")[2])
    try:
        socket.create_server(("", port)).close()
    except OSError as failure:
        reason = os.strerror(failure.errno or 0)
        raise EndxError(
            f"process 0 can't listen on port {port} ({reason}): another run may use it; choose another port"
        ) from None


def _broadcast(failure: EndxError | RunInterrupted | None) -> EndxError | RunInterrupted | None:
    """Returns the primary's failure on every process, with its type and message."""
    from jax.experimental import multihost_utils

    kind, text = 0, b""
    if failure:
        kind, text = (2 if isinstance(failure, RunInterrupted) else 1), str(failure).encode()[:MAX_MESSAGE_BYTES]
    message = np.zeros(1 + MAX_MESSAGE_BYTES, np.uint8)
    message[0], message[1 : 1 + len(text)] = kind, np.frombuffer(text, np.uint8)
    received = np.asarray(multihost_utils.broadcast_one_to_all(message))
    if is_primary() or not received[0]:
        return failure
    text = received[1:].tobytes().rstrip(b"\0")
    return (RunInterrupted if received[0] == 2 else EndxError)(text.decode(errors="replace"))
