"""Preemption by SIGTERM: training saves a checkpoint and exits; all other phases exit immediately.

All processes must save at the same step, even if only one receives the signal. They agree through a flag that is
reduced over all devices after each step and read one step later, like the metrics, so that no process waits for it.
JAX's own preemption service is not used: its handler would stay installed outside of the training steps too.
"""

import functools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from endx_jax.errors import TRY_AGAIN

EXIT_MESSAGE = "endx_jax: stopped by SIGTERM outside of the training steps; run the same command to resume\n"


class Preemption:
    """Context manager that handles SIGTERM; has no effect outside the main thread, where Python delivers no signals."""

    def __init__(self) -> None:
        self._received = self._deferred = False
        self._pending: jax.Array | None = None

    def __enter__(self) -> "Preemption":
        self._installed = threading.current_thread() is threading.main_thread()
        if self._installed:
            self._previous = signal.signal(signal.SIGTERM, self._handle)
        return self

    def __exit__(self, *failure) -> None:
        if self._installed:
            signal.signal(signal.SIGTERM, self._previous)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Context in which SIGTERM only sets the flag of `should_stop`; exits the process at its end if it is set."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False
        if self._received:
            _exit_now()

    def should_stop(self, mesh: Mesh) -> bool:
        """Returns true if any process has received SIGTERM; all processes get the same value.

        Args:
          mesh: mesh of the training step. Every process must call this once after each step.
        """
        if jax.process_count() == 1:
            return self._received
        previous, self._pending = self._pending, _any(self._received, mesh)
        return previous is not None and bool(jax.device_get(previous))

    def _handle(self, number: int, frame: object) -> None:
        self._received = True
        if not self._deferred:
            _exit_now()


def _any(local: bool, mesh: Mesh) -> jax.Array:
    """Reduces a flag over all processes, asynchronously; true if it is set in one of them."""
    split = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    flags = jax.make_array_from_callback((mesh.size,), split, lambda part: np.full(mesh.size, local)[part])
    return _reduction(mesh)(flags)


@functools.cache
def _reduction(mesh: Mesh) -> Callable[[jax.Array], jax.Array]:
    """Returns the compiled reduction of a mesh, the same for all steps."""
    return jax.jit(jnp.any, out_shardings=NamedSharding(mesh, PartitionSpec()))


def _exit_now() -> None:
    """Exits without Python's cleanup, which may wait for a compilation; files on disk are complete at any time."""
    os.write(2, EXIT_MESSAGE.encode())
    os._exit(TRY_AGAIN)
