"""Profiler traces of training steps, for TensorBoard or Perfetto."""

import pathlib
import socket
from contextlib import AbstractContextManager

import jax

from endx_jax.parallel.agreement import gathered
from endx_jax.settings import check_range

WARM_UP = 2  # steps before the first recorded one: they compile and warm up


class Trace:
    """Records a profiler trace of the first steps, and lets TensorBoard capture others from a server.

    Every process writes its own trace and has its own server.
    """

    def __init__(self, folder: pathlib.Path, *, start: int, steps: int, port: int = 0):
        """Selects the steps to record, and starts the server.

        Args:
          folder: output folder; each of several processes writes to a subfolder of its own.
          start: step from which training starts or resumes.
          steps: number of steps to record after the first `WARM_UP` ones.
          port: port of the profiler's server; further processes of a host take the next ports. 0 for no server.
        """
        several = jax.process_count() > 1
        self._folder = folder / f"process-{jax.process_index()}" if several else folder
        self._first, self._last = start + WARM_UP, start + WARM_UP + steps
        self._running, self._serving = False, port > 0
        if self._serving:
            hosts = gathered(socket.gethostname(), "profiler-hosts")
            port += hosts[: jax.process_index()].count(hosts[jax.process_index()])
            check_range("train.profiler_port of this process", port, 1, 65535)
            jax.profiler.start_server(port)

    def step(self, step: int) -> AbstractContextManager:
        """Returns a context manager for the call of a step, which it names in the trace; may start a trace."""
        if step == self._first < self._last:
            jax.profiler.start_trace(str(self._folder))
            self._running = True
        return jax.profiler.StepTraceAnnotation("train", step_num=step)

    def end_step(self, done: int, outputs: object) -> None:
        """Writes the trace after its last step; `done` is the number of finished steps, `outputs` the step's arrays."""
        if self._running and done == self._last:
            jax.block_until_ready(outputs)
            self._write()

    def close(self) -> None:
        """Writes an unfinished trace, if any, and stops the server."""
        self._write()
        if self._serving:
            jax.profiler.stop_server()
            self._serving = False

    def _write(self) -> None:
        if self._running:
            jax.profiler.stop_trace()
            self._running = False
