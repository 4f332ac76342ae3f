"""Hooks of the training loop: validation with early stopping, checkpoints, and profiler traces.

Validation precedes the save, so that the checkpoint has its metrics. `Monitor.paused` checks the last loss
first, so that no checkpoint holds parameters from a loss that is not finite.
"""

import dataclasses
import pathlib
import signal
import socket
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from time import monotonic

import jax

from endx_jax.errors import RunInterrupted
from endx_jax.parallel.agreement import all_gather, broadcast, check_parameters
from endx_jax.parallel.distributed import end_together, is_primary
from endx_jax.settings import check_range
from endx_jax.training.checkpoints import Checkpoints
from endx_jax.training.loop import TrainSettings
from endx_jax.training.monitor import Monitor
from endx_jax.training.preemption import NAMES, SAVE
from endx_jax.training.step import TrainState

WARM_UP = 2  # steps before the first recorded one: they compile and warm up


@dataclasses.dataclass
class EarlyStopping:
    """Ends training after `patience` validations in a row without a new best value of a metric.

    It has no state to save: validations are at multiples of `every`, and the best checkpoint, which is always kept, has
    the step and the value of the best validation. So a resumed run stops where an uninterrupted one does.

    `best` has step and value of the best validation. A `patience` of 0 never stops.
    """

    metric: str
    patience: int
    every: int
    best: tuple[int, float] | None = None

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        """Records the metrics of a validation."""
        if self.metric in metrics and (self.best is None or metrics[self.metric] > self.best[1]):
            self.best = (step, metrics[self.metric])

    def stops_at(self, step: int) -> bool:
        """Returns true if training ends at a step. The primary process decides; every process must call this."""
        if not self.patience:
            return False
        without = 0 if self.best is None else step // self.every - self.best[0] // self.every
        return broadcast(lambda: without >= self.patience, "early-stopping")


@dataclasses.dataclass
class Validation:
    """Hook that validates the parameters, and ends training when `stopping` says so.

    In a resumed run, `stopping` begins with the best validation so far. `latest` has step and metrics of the last one.
    """

    validate: Callable[[dict], Mapping[str, float]]
    stopping: EarlyStopping
    monitor: Monitor
    latest: tuple[int, Mapping[str, float]] = (0, {})

    def __call__(self, step: int, state: TrainState, _) -> bool:
        """Validates the state of a step; returns true if training ends."""
        with self.monitor.paused():
            check_parameters(state.params, step)
            self.latest = step, self.validate(state.params)
            self.monitor.log_validation(*self.latest, self.stopping.metric)
        self.stopping.add(*self.latest)
        return self.stopping.stops_at(step)


@dataclasses.dataclass
class SavePolicy:
    """Hook that saves a checkpoint after some steps or minutes, a validation, the last step, or a signal.

    A checkpoint of any kind restarts the clock. `signals` is `Preemption.agreed` on the mesh of the run, `validation`
    the hook before this one, and `last` the step at which the run ends or stops.
    """

    settings: TrainSettings
    signals: Callable[[bool], int]
    checkpoints: Checkpoints
    monitor: Monitor
    validation: Validation | None
    last: int
    saved_at: float = dataclasses.field(default_factory=lambda: monotonic())

    def __call__(self, step: int, state: TrainState, _) -> None:
        """Saves the state of a step if a checkpoint is due. Every process must call this after each call of the step.

        Raises:
          RunInterrupted, KeyboardInterrupt: a process received SIGTERM or Ctrl-C; the state was saved first.
        """
        validated, metrics = self.validation.latest if self.validation else (0, {})
        due = step in (validated, self.last) or step % self.settings.checkpoint_every == 0
        if self.checkpoints.has_failed():
            self.checkpoints.wait()  # raises the error; the other processes end as this one does
        # Process 0 alone requests saves by time, once an interval; the request reaches all processes one call later.
        late = not due and is_primary() and 0 < self.settings.checkpoint_minutes * 60 <= monotonic() - self.saved_at
        asked = self.signals(late)
        if due or asked:
            with self.monitor.paused():
                self.checkpoints.save(step, state, metrics if step == validated else None)
        if due or asked or late:
            self.saved_at = monotonic()
        if asked > SAVE:
            self.checkpoints.wait()
            end_together()
            kind = KeyboardInterrupt if asked == signal.SIGINT else RunInterrupted
            place = f"step {step} of {self.monitor.steps}"
            raise kind(f"stopped by {NAMES[asked]}: saved at {place}; run the same command to resume")


class Trace:
    """Records a profiler trace of the first steps, and lets TensorBoard capture others from a server.

    TensorBoard and Perfetto show traces. Every process writes its own trace and has its own server.
    """

    def __init__(self, folder: pathlib.Path, *, start: int, steps: int, port: int = 0):
        """Selects `steps` steps to record after the first `WARM_UP` ones from `start`, and starts the server.

        Each of several processes writes to a subfolder of its own, and those of a host take ports one after another; 0
        is no server.
        """
        several = jax.process_count() > 1
        self._folder = folder / f"process-{jax.process_index()}" if several else folder
        self._first, self._steps = start + WARM_UP, steps
        self._last, self._running, self._serving = 0, False, port > 0
        if self._serving:
            hosts = all_gather(socket.gethostname(), "profiler-hosts")
            port += hosts[: jax.process_index()].count(hosts[jax.process_index()])
            check_range("train.profiler_port of this process", port, 1, 65535)
            jax.profiler.start_server(port)

    def step(self, step: int) -> AbstractContextManager:
        """Returns a context manager for the call that begins with a step, which it names; may start a trace."""
        if self._steps and step >= self._first and not self._last:
            jax.profiler.start_trace(str(self._folder))
            self._last, self._running = step + self._steps, True
        return jax.profiler.StepTraceAnnotation("train", step_num=step)

    def end_step(self, done: int, outputs: object) -> None:
        """Writes the trace after its last step; `done` is the number of finished steps, `outputs` the call's arrays."""
        if self._running and done >= self._last:
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
