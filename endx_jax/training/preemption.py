"""Interruption by SIGTERM or Ctrl-C: training saves a checkpoint and exits; all other phases exit immediately.

All processes must save at the same step, even if only one receives the signal. They agree through a number that is
reduced over all devices after each step and read one step later, like the metrics, so that no process waits for it.
JAX's own preemption service is not used: its handler would stay installed outside of the training steps too.
"""

import functools
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from endx_jax.errors import INTERRUPTED, TRY_AGAIN, RunInterrupted
from endx_jax.parallel.distributed import exit_now
from endx_jax.training.checkpoints import newest_step

SAVE = 1  # request for a checkpoint only; less than the numbers of the signals
LISTING = 2.0  # seconds within which the newest checkpoint has to be found to be named in the last line
NAMES: dict[int, str] = {signal.SIGTERM: "SIGTERM", signal.SIGINT: "Ctrl-C"}
NOTICE = b"endx_jax: Ctrl-C: the run saves after this step and ends; a second Ctrl-C ends it at once, without saving\n"
_entered: list[ExitStack] = []  # callbacks of the contexts that are open
if hasattr(os, "register_at_fork"):  # a forked process has no thread that reacts, so its old handlers return
    os.register_at_fork(after_in_child=lambda: [*map(ExitStack.close, reversed(_entered[:]))])


class Preemption:
    """Context manager that handles SIGTERM and Ctrl-C (SIGINT) for a run.

    A second Ctrl-C ends the process at once; in a notebook or another interactive session, it raises KeyboardInterrupt.
    Has no effect outside the main thread, where Python delivers no signals.
    """

    def __init__(self, workdir: str | os.PathLike) -> None:
        """Takes the run's folder, whose newest checkpoint the last line names."""
        self._workdir, self._undo, self._received = workdir, ExitStack(), set[int]()
        self._deferred, self._interactive = False, hasattr(sys, "ps1")
        self._pending: jax.Array | None = None

    def __enter__(self) -> "Preemption":
        if threading.current_thread() is not threading.main_thread():
            return self
        handler: Callable[..., None] = self._handle if self._interactive else lambda *_: None
        if not self._interactive:
            # Python calls handlers only after the step that the main thread waits for; a thread reacts at once.
            received, wakeup = socket.socketpair()
            wakeup.setblocking(False)
            outer = signal.set_wakeup_fd(wakeup.fileno(), warn_on_full_buffer=False)
            self._undo.callback(wakeup.close)
            self._undo.callback(signal.set_wakeup_fd, outer)
            threading.Thread(target=self._watch, args=(received,), daemon=True).start()
        for number in NAMES:
            # A shell makes background jobs ignore interrupts; None is a handler that is not Python's.
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                self._undo.callback(signal.signal, number, signal.signal(number, handler))
        _entered.append(self._undo)
        self._undo.callback(_entered.remove, self._undo)
        return self

    def __exit__(self, *failure) -> None:
        self._undo.close()

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Context in which a first signal only sets what `agreed` returns; the process ends after it if one came."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False
        if self._received:
            self._leave(max(self._received))

    def agreed(self, mesh: Mesh, save: bool = False) -> int:
        """Returns the largest request of any process: the number of a signal, `SAVE` if it asks to `save`, or 0.

        Every process of the mesh must call this once after each step; all get the same value.
        """
        asked = max(self._received, default=SAVE * save)
        if jax.process_count() == 1:
            return asked
        previous, self._pending = self._pending, _largest(asked, mesh)
        return 0 if previous is None else int(jax.device_get(previous))

    def _watch(self, received: socket.socket) -> None:
        with received:
            while number := received.recv(1):
                self._handle(number[0])

    def _handle(self, number: int, frame: object = None) -> None:
        if number in NAMES:
            again = number == signal.SIGINT and number in self._received
            self._received.add(number)
            if again or not self._deferred:
                self._leave(number)
            elif number == signal.SIGINT:
                with suppress(OSError):  # the terminal may be gone
                    os.write(2, NOTICE)

    def _leave(self, number: int) -> None:
        resume = ["resume"]  # the end if the workdir, such as a bucket, can't be listed in time
        listing = threading.Thread(target=self._list, args=(resume,), daemon=True)
        listing.start()
        listing.join(LISTING)
        message = f"stopped by {NAMES[number]}; run the same command to {resume[-1]}"
        if number == signal.SIGINT and self._interactive:
            raise KeyboardInterrupt(message)
        exit_now(INTERRUPTED if number == signal.SIGINT else TRY_AGAIN, message)

    def _list(self, resume: list[str]) -> None:
        with suppress(RunInterrupted, OSError, ValueError):
            step = newest_step(self._workdir)
            again = "start again: there is no checkpoint yet"
            resume.append(again if step is None else f"resume at step {step}, its checkpoint")


def _largest(local: int, mesh: Mesh) -> jax.Array:
    """Reduces a number over all processes to the largest, asynchronously."""
    split = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    numbers = jax.make_array_from_callback((mesh.size,), split, lambda part: np.full(mesh.size, local, np.int32)[part])
    return _reduction(mesh)(numbers)


@functools.cache
def _reduction(mesh: Mesh) -> Callable[[jax.Array], jax.Array]:
    """Returns the compiled reduction of a mesh, the same for all steps."""
    return jax.jit(jnp.max, out_shardings=NamedSharding(mesh, PartitionSpec()))
