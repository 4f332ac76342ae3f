"""SIGTERM, by which machines are taken back: training saves and leaves, everything else leaves at once.

Every process may be told, or one alone; all of them have to save at the same step. They agree by a flag that is reduced
over all devices after each step and looked at one step later, like the metrics, so that nobody waits for it. JAX has a
service for this, but its handler would take SIGTERM from us for good, outside of the steps as well.
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
    """Heeds SIGTERM while it is entered; in the main thread, as Python hands signals to no other."""

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
        """Inside, a notice is only remembered: see `agreed`. One that nobody has acted on by the end is acted on."""
        self._put_off = True
        try:
            yield
        finally:
            self._put_off = False
        if self._told:
            _leave()

    def agreed(self, mesh: Mesh) -> bool:
        """Returns true if it is time to save and leave, the same in every process.

        Args:
          mesh: of the training step; every process has to ask, once after each step.
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
    """Starts to find out whether a flag is set in any process."""
    split = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    flags = jax.make_array_from_callback((mesh.size,), split, lambda part: np.full(mesh.size, mine)[part])
    return _reduction(mesh)(flags)


@functools.cache
def _reduction(mesh: Mesh) -> Callable[[jax.Array], jax.Array]:
    """One program for all steps."""
    return jax.jit(jnp.any, out_shardings=NamedSharding(mesh, PartitionSpec()))


def _leave() -> None:
    """Ends this process here and now: what is on disk is whole, and Python's way out may wait for a compilation."""
    os.write(2, LEAVING.encode())
    os._exit(TRY_AGAIN)
