"""Profiler traces of training steps, for TensorBoard or Perfetto."""

import pathlib
import time
from contextlib import AbstractContextManager

import jax

WARM_UP = 2  # steps before the first recorded one: they compile and warm up
REQUESTED_STEPS, MAX_STEPS = 5, 100  # default and maximum length of a trace that is requested during training
POLL_SECONDS = 5.0  # time between checks of the request file


class Trace:
    """Records profiler traces: one of the first steps, as configured, and others on request during training.

    Writing or touching the request file requests a trace. Every process checks the file itself, so a shared workdir
    is all that several processes need.
    """

    def __init__(self, folder: pathlib.Path, *, start: int, steps: int, request: pathlib.Path | None = None):
        """Selects the steps to record.

        Args:
          folder: output folder; each of several processes writes to a subfolder of its own.
          start: step from which training starts or resumes.
          steps: number of steps to record after the first `WARM_UP` ones.
          request: request file, which holds the number of steps to record; `REQUESTED_STEPS` if it is empty.
        """
        several = jax.process_count() > 1
        self._folder = folder / f"process-{jax.process_index()}" if several else folder
        self._first, self._last = start + WARM_UP, start + WARM_UP + steps
        self._request, self._checked = request, time.monotonic()
        self._served = self._modified()  # ignores requests to an earlier run
        self._running = False

    def step(self, step: int) -> AbstractContextManager:
        """Returns a context manager for the call of a step, which it names in the trace; may start a trace."""
        if not self._running and (steps := self._requested()):
            self._first, self._last = step, step + steps
        if step == self._first < self._last and not self._running:
            jax.profiler.start_trace(str(self._folder))
            self._running = True
        return jax.profiler.StepTraceAnnotation("train", step_num=step)

    def end_step(self, done: int, outputs: object) -> None:
        """Writes the trace after its last step; `done` is the number of finished steps, `outputs` the step's arrays."""
        if self._running and done == self._last:
            jax.block_until_ready(outputs)
            self.close()

    def close(self) -> None:
        """Writes an unfinished trace, if any."""
        if self._running:
            jax.profiler.stop_trace()
            self._running = False

    def _requested(self) -> int:
        """Returns the number of steps of a new request, or 0."""
        if self._request is None or time.monotonic() - self._checked < POLL_SECONDS:
            return 0
        self._checked = time.monotonic()
        modified = self._modified()
        if modified in (None, self._served):
            return 0
        self._served = modified
        try:
            words = self._request.read_text().split()
        except OSError:
            return 0
        return min(int(words[0]), MAX_STEPS) if words and words[0].isdigit() else REQUESTED_STEPS

    def _modified(self) -> int | None:
        """Returns the modification time of the request file in nanoseconds; None if there is no file."""
        try:
            return self._request.stat().st_mtime_ns if self._request else None
        except OSError:
            return None
