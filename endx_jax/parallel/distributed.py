"""Distributed processes: initialization from the environment, and the end of all when one of them fails."""

import atexit
import contextlib
import json
import os
import re
import socket
import sys
import threading
import time
import traceback
from typing import Any

import jax

from endx_jax.errors import TRY_AGAIN, EndxError, first_line
from endx_jax.parallel.environment import read_environment

FAILURE = "endx_jax/failure"  # key of the first process that has failed
POLL_SECONDS = 1.0  # seconds between two checks for a failure of another process
GRACE_SECONDS = 2.0  # time for a process to end by itself, after another one has failed
PRIMARY_EXIT_DELAY = 5.0  # seconds: process 0 exits last, since JAX aborts the other processes when it is gone

# Errors of collectives whose peer is gone, of Gloo, NCCL and gRPC.
LOST_PEER = re.compile(r"Gloo|NCCL|^UNAVAILABLE: |Connection (reset|closed|refused)")

_index: int | None = None  # of this process
_leaving = threading.Event()  # set once failures of other processes do not count any more
_ending = threading.RLock()  # held by the thread that ends this process, and never released


def initialize() -> None:
    """Connects to the other processes that the environment names, if any; must be called before any device is used.

    `read_environment` lists the variables. After this call, this process ends if another one reports a failure, and JAX
    aborts it (SIGABRT, status 134) if another one dies, hangs or does not connect; docs/faults.md lists the timeouts.

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
    global _index
    _index = config.process_id
    client()  # imports Orbax before the thread does
    watch = threading.Thread(target=_end_with_others, daemon=True)
    watch.start()
    atexit.register(watch.join)  # before JAX's shutdown
    atexit.register(_leaving.set)


def is_primary() -> bool:
    """Returns true on the primary process, the one with index 0, which prints and writes files."""
    return jax.process_index() == 0


def client() -> Any:
    """Returns the client of JAX's coordination service, whose key-value store all processes share."""
    from orbax.checkpoint import multihost

    return multihost.get_jax_distributed_client()


def exit_if_distributed(status: int, message: str) -> None:
    """Reports a failure to the other processes and exits, if this is one of several; returns otherwise.

    The exit skips JAX's shutdown, which waits for all processes: if one of them is still in a collective, it times out
    and aborts with status 134, which launchers retry, instead of the 2 of a user error.
    """
    if not jax.distributed.is_initialized():
        return
    _ending.acquire()
    _leaving.set()
    try:
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # another process was first, or process 0 is gone
            client().key_value_set(FAILURE, json.dumps([_process(), status, message]))
        sys.stdout.flush()
        sys.stderr.flush()
        if _process() == 0:
            time.sleep(PRIMARY_EXIT_DELAY)
    finally:
        os._exit(status)


def exit_now(status: int, message: str) -> None:
    """Prints and reports a message, and exits without Python's cleanup, which may wait for a compilation."""
    with contextlib.suppress(OSError):
        os.write(2, f"endx_jax: {message}\n".encode())
    exit_if_distributed(status, message)
    os._exit(status)


def end_together() -> None:
    """Stops watching the other processes; all processes call this once they have agreed to end."""
    _leaving.set()


def exit_after(error: Exception) -> None:
    """Exits after an unexpected error if this is one of several processes; returns otherwise.

    After the error of a collective, prints which process has ended, if that is known, and exits with its status; else
    with status 75. After any other error, prints the traceback and exits with status 1.
    """
    if not jax.distributed.is_initialized():
        return
    _ending.acquire()  # waits for ever if another thread is ending this process
    _leaving.set()
    lost = isinstance(error, RuntimeError | ValueError) and LOST_PEER.search(str(error))
    if lost:
        time.sleep(GRACE_SECONDS)  # the other process may be about to report its failure
    if lost and (failure := _reported()):
        status, text = failure
    elif lost:
        status, text = TRY_AGAIN, f"another process was lost ({first_line(error)}); run the same command again"
    else:
        status, text = 1, "".join(traceback.format_exception(error)).rstrip()
    sys.stderr.write(f"endx_jax: {text}\n")
    exit_if_distributed(status, text if lost else first_line(error))


def _reported() -> tuple[int, str] | None:
    """Returns status and line of the failure of another process; None if there is none, or process 0 is gone."""
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        process, status, message = json.loads(client().key_value_try_get(FAILURE))
        return (status, f"process {process} ended: {message}") if process != _process() else None
    return None


def _process() -> int:
    """Returns the index of this process; does not initialize devices, which may be what has failed."""
    return jax.process_index() if _index is None else _index


def _end_with_others() -> None:
    """Watches for the failure of another process, and ends this one `GRACE_SECONDS` after it."""
    while not _leaving.wait(POLL_SECONDS):
        failure = _reported()
        if failure and not _leaving.wait(GRACE_SECONDS):
            exit_now(*failure)


def _check_port(address: str) -> None:
    """Raises EndxError if the port is in use, in which case JAX would end with a segmentation fault."""
    port = int(address.rpartition(":")[2])
    try:
        socket.create_server(("", port)).close()
    except OSError as failure:
        reason = os.strerror(failure.errno or 0)
        raise EndxError(f"process 0 can't listen on port {port} ({reason}): choose another port") from None
