"""A trace of some training steps: what the devices did when, for TensorBoard's profiler or Perfetto."""

import pathlib
from contextlib import AbstractContextManager

import jax

# Steps before the first that is recorded: they compile and warm up.
WARM_UP = 2


class Trace:
    """Records steps into a folder; none, where `steps` is 0."""

    def __init__(self, folder: pathlib.Path, *, start: int, steps: int):
        """Sets up which steps to record.

        Args:
          folder: where the trace goes.
          start: the step that training begins or goes on with.
          steps: how many to record, after `WARM_UP` others.
        """
        self._folder, self._first, self._last = folder, start + WARM_UP, start + WARM_UP + steps
        self._running = False

    def step(self, step: int) -> AbstractContextManager:
        """To be held around the call of a step, which it names in the trace."""
        if step == self._first < self._last:
            jax.profiler.start_trace(str(self._folder))
            self._running = True
        return jax.profiler.StepTraceAnnotation("train", step_num=step)

    def done(self, done: int, outputs: object) -> None:
        """To be called after step number `done`, with what it will have computed; the last one writes the trace."""
        if self._running and done == self._last:
            jax.block_until_ready(outputs)
            self.close()

    def close(self) -> None:
        """Writes what there is, where training ended before the last step to record."""
        if self._running:
            jax.profiler.stop_trace()
            self._running = False
