"""Profiler trace of some training steps, for TensorBoard or Perfetto."""

import pathlib
import time
from contextlib import AbstractContextManager

import jax

# Steps before the first that is recorded: they compile and warm up.
WARM_UP = 2

# Of a trace that is asked for while training goes on, where the request does not say.
REQUESTED_STEPS, MOST_STEPS = 5, 100
LOOK_SECONDS = 5.0  # between looks for a request


class Trace:
    """Profiler of the steps that the settings ask for, and of others on request by a file.

    A request is made by writing or touching the file. Every process checks it, so this works wherever the workdir is
    shared, without access to the processes.
    """

    def __init__(self, folder: pathlib.Path, *, start: int, steps: int, request: pathlib.Path | None = None):
        """Sets the steps to record.

        Args:
          folder: for traces; with several processes, each has a folder in it.
          start: the step from which training starts or resumes.
          steps: number of steps to record, after `WARM_UP` others.
          request: the file that requests a trace; it contains the number of steps, or is empty (`REQUESTED_STEPS`).
        """
        several = jax.process_count() > 1
        self._folder = folder / f"process-{jax.process_index()}" if several else folder
        self._first, self._last = start + WARM_UP, start + WARM_UP + steps
        self._request, self._looked = request, time.monotonic()
        self._served = self._changed()  # what was asked of an earlier run
        self._running = False

    def step(self, step: int) -> AbstractContextManager:
        """Names a step in the trace, as a context around its call."""
        if not self._running and (steps := self._requested()):
            self._first, self._last = step, step + steps
        if step == self._first < self._last and not self._running:
            jax.profiler.start_trace(str(self._folder))
            self._running = True
        return jax.profiler.StepTraceAnnotation("train", step_num=step)

    def done(self, done: int, outputs: object) -> None:
        """Takes the outputs of step number `done`, which may still be computed; the last one writes the trace."""
        if self._running and done == self._last:
            jax.block_until_ready(outputs)
            self.close()

    def close(self) -> None:
        """Writes an incomplete trace if training ended before the last step to record."""
        if self._running:
            jax.profiler.stop_trace()
            self._running = False

    def _requested(self) -> int:
        """Returns the number of steps of a new request in the file, or 0."""
        if self._request is None or time.monotonic() - self._looked < LOOK_SECONDS:
            return 0
        self._looked = time.monotonic()
        changed = self._changed()
        if changed in (None, self._served):
            return 0
        self._served = changed
        try:
            words = self._request.read_text().split()
        except OSError:
            return 0
        return min(int(words[0]), MOST_STEPS) if words and words[0].isdigit() else REQUESTED_STEPS

    def _changed(self) -> int | None:
        """Returns the time of the file's last change; None if it does not exist."""
        try:
            return self._request.stat().st_mtime_ns if self._request else None
        except OSError:
            return None
