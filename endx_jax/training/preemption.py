"""Handling of SIGTERM: training saves and exits, everything else exits at once.

One or all of the processes may receive the signal, and all have to save at the same step. They agree by a flag that is
reduced over all devices after each step and read one step later, like the metrics, so that no process waits. JAX has a
service for this, but its handler would replace ours outside of the steps as well.
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

LEAVING = "endx_jax: told to stop (SIGTERM) outside of the training steps; the same command resumes\n"


class Preemption:
    """Context that handles SIGTERM; to be entered in the main thread, where Python delivers signals."""

    def __init__(self) -> None:
        self._told = self._put_off = False
        self._asked: jax.Array | None = None

    def __enter__(self) -> "Preemption":
        self._heeds = threading.current_thread() is threading.main_thread()
        if self._heeds:
            self._before = signal.signal(signal.SIGTERM, self._handle)
        return self

    def __exit__(self, *failure) -> None:
        if self._heeds:
            signal.signal(signal.SIGTERM, self._before)

    @contextmanager
    def put_off(self) -> Iterator[None]:
        """Defers SIGTERM inside the block: see `agreed`. A signal that was not acted on by the end ends the process."""
        self._put_off = True
        try:
            yield
        finally:
            self._put_off = False
        if self._told:
            _leave()

    def agreed(self, mesh: Mesh) -> bool:
        """Returns true if it is time to save and exit, the same in every process.

        Args:
          mesh: of the training step; every process has to call this once after each step.
        """
        if jax.process_count() == 1:
            return self._told
        before, self._asked = self._asked, _any(self._told, mesh)
        return before is not None and bool(jax.device_get(before))

    def _handle(self, number: int, frame: object) -> None:
        self._told = True
        if not self._put_off:
            _leave()


def _any(mine: bool, mesh: Mesh) -> jax.Array:
    """Starts the reduction of a flag over all processes."""
    split = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    flags = jax.make_array_from_callback((mesh.size,), split, lambda part: np.full(mesh.size, mine)[part])
    return _reduction(mesh)(flags)


@functools.cache
def _reduction(mesh: Mesh) -> Callable[[jax.Array], jax.Array]:
    """Compiles the reduction, once for all steps."""
    return jax.jit(jnp.any, out_shardings=NamedSharding(mesh, PartitionSpec()))


def _leave() -> None:
    """Exits at once: files on disk are complete, and Python's normal exit may wait for a compilation."""
    os.write(2, LEAVING.encode())
    os._exit(TRY_AGAIN)
