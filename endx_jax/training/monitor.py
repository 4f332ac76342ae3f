"""Monitor of a run: progress bar, metric log, pace of the steps, and the check that every loss is finite."""

import collections
import json
import math
import pathlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import jax
import numpy as np
import tqdm

from endx_jax.errors import EndxError
from endx_jax.files import write_text
from endx_jax.parallel.console import say, showing_progress
from endx_jax.parallel.distributed import is_primary
from endx_jax.training.loop import TrainSettings
from endx_jax.training.metric_log import MetricLog

# Number of the newest steps over which percentiles are computed.
WINDOW = 200


class NonFiniteLoss(EndxError):
    """Error for a loss that is NaN or infinite; every process raises it at the same step."""


class Pace:
    """Times of the steps of one process, as given by the caller."""

    def __init__(self) -> None:
        self._steps: collections.deque[float] = collections.deque(maxlen=WINDOW)
        self._in_steps = self._stalled = 0.0

    def add_step(self, seconds: float, stalled: float) -> None:
        """Records a step that ended `seconds` after the previous one, without data for `stalled` of them."""
        self._steps.append(seconds)
        self._in_steps += max(0.0, seconds - stalled)
        self._stalled += stalled

    def metrics(self, wall: float) -> dict[str, float]:
        """Returns the metrics to log, `wall` seconds after this start of the run.

        They are `step_seconds_p50`, `_p95` and `_max` of the last `WINDOW` steps; `goodput`, the share of `wall` in
        steps, without waits for data; `data_stall_seconds`, the waits since the last call. They are empty before the
        second step, since the time of the first is mostly compilation.
        """
        if not self._steps:
            return {}
        middle, high, most = np.percentile(self._steps, (50, 95, 100))
        found = {"step_seconds_p50": middle, "step_seconds_p95": high, "step_seconds_max": most}
        found |= {"goodput": self._in_steps / wall, "data_stall_seconds": self._stalled}
        self._stalled = 0.0
        return {name: round(float(value), 4) for name, value in found.items()}


class Monitor:
    """Logs the metrics of each step one call later, when the devices have computed them.

    The steps of one call share its time equally.

    Attributes:
      steps: number of steps of the whole run.
    """

    def __init__(
        self,
        workdir: pathlib.Path,
        settings: TrainSettings,
        *,
        start: int,
        steps: int,
        began: float,
        example_names: Callable[[int], Sequence[str]],
        warnings: Callable[[Mapping[str, float]], Mapping[str, str]] = lambda metrics: {},
    ):
        """Opens the log and the progress bar on the primary process.

        Args:
          workdir: the run's folder.
          settings: batch size, steps between log lines, and Weights & Biases project.
          start: step from which training starts or resumes.
          steps: number of steps of the whole run.
          began: `time.perf_counter()` at the start of the run, for goodput.
          example_names: function from a step to the ids of the questions in its batch.
          warnings: function from the metrics of a logged step to warnings by name; each is printed once until it is
            resolved.
        """
        self._workdir, self._settings, self.steps = workdir, settings, steps
        self._example_names, self._warnings, self._warned = example_names, warnings, set[str]()
        self._began, self._pace = began, Pace()
        wandb = settings.wandb_project
        self._log = MetricLog(workdir, resume_step=start, wandb_project=wandb) if is_primary() else None
        hidden = not (sys.stderr.isatty() and showing_progress())
        self._bar = tqdm.tqdm(
            desc="training", unit="step", total=steps, initial=start, dynamic_ncols=True, disable=hidden
        )
        self._pending: tuple[int, dict[str, jax.Array]] | None = None
        # Times of the last log line and of the last step, plus the pauses since then.
        self._since = self._stepped = time.perf_counter()
        self._compiled, self._steps_since, self._tokens_since, self._stalled = False, 0, 0.0, 0.0

    def push(self, step: int, metrics: dict[str, jax.Array]) -> None:
        """Accepts the metrics of a call, scalars or [S], whose last step is `step`; logs those of the previous call."""
        self.flush()
        self._pending = (step, metrics)

    def flush(self) -> None:
        """Logs the pending metrics, if any.

        Raises:
          EndxError: the loss or the gradient is not finite; the message has the step, the questions and the learning
            rate.
        """
        if self._pending is None:
            return
        (last, metrics), self._pending = self._pending, None
        fetched = jax.device_get(metrics)
        columns = {name: np.ravel(fetched[name]).astype(float).tolist() for name in ("loss", *fetched)}
        count = len(columns["loss"])
        now = time.perf_counter()
        seconds, stalled, compiled = (now - self._stepped) / count, self._stalled / count, self._compiled
        for n in range(count):
            step, values = last - count + 1 + n, {name: column[n] for name, column in columns.items()}
            for name in ("loss", "gradient_norm"):
                if not math.isfinite(values[name]):
                    self._stop_on_non_finite(step, name, values)
            self._steps_since += 1
            self._tokens_since += values.pop("tokens")
            if compiled:
                self._pace.add_step(seconds, stalled)
            self._bar.update()
            due = step % self._settings.log_every == 0 or step == self.steps
            ended = now - (count - 1 - n) * seconds
            if due:
                self._write(step, values, ended)
            if due or not compiled:  # most of the first call's time is compilation
                self._since, self._steps_since, self._tokens_since = ended, 0, 0.0
        self._stepped, self._stalled, self._compiled = now, 0.0, True

    @contextmanager
    def data_wait(self) -> Iterator[None]:
        """Context in which the next batch is read; measures how long the devices wait for it."""
        before = time.perf_counter()
        yield
        # Devices that still compute the previous step have not waited.
        if self._pending and self._pending[1]["loss"].is_ready():  # type: ignore[attr-defined]  # jax.Array's has none
            self._stalled += time.perf_counter() - before

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Context whose time is excluded from throughput and step times; flushes first, and raises as `flush` does."""
        self.flush()
        before = time.perf_counter()
        yield
        seconds = time.perf_counter() - before
        self._since += seconds
        self._stepped += seconds

    def log_validation(self, step: int, metrics: Mapping[str, float], shown: str = "") -> None:
        """Logs validation metrics, and prints the one with the name `shown`."""
        if self._log:
            self._log.write(step, dict(metrics), prefix="validation/")
            if shown in metrics:
                say(f"step {step}/{self.steps}: validation {shown} {metrics[shown]:.4f}")

    def close(self) -> None:
        """Closes the progress bar and the log."""
        self._bar.close()
        if self._log:
            self._log.close()

    def _write(self, step: int, values: dict[str, float], ended: float) -> None:
        elapsed = ended - self._since
        speed = self._steps_since / elapsed
        values["pairs_per_second"] = round(speed * self._settings.global_batch_size, 3)
        values["tokens_per_second"] = round(self._tokens_since / elapsed, 1)
        values |= self._pace.metrics(ended - self._began)
        summary = f"loss {values['loss']:.4f}, {values['pairs_per_second']:.1f} pairs/s"
        self._bar.set_postfix_str(summary)
        if self._log:
            self._log.write(step, values)
            if self._bar.disable:
                say(f"step {step}/{self.steps}: {summary}, {(self.steps - step) / speed:.0f} s left")
            raised = self._warnings(values)
            for name, warning in raised.items():
                if name not in self._warned:
                    say(f"warning: at step {step}, {warning}")
            self._warned = set(raised)

    def _stop_on_non_finite(self, step: int, name: str, values: dict[str, float]) -> None:
        names = list(self._example_names(step))
        file = self._workdir / "non_finite_batch.json"
        if is_primary():
            report = {"step": step, "questions": names, **{k: str(v) for k, v in values.items()}}
            write_text(file, json.dumps(report, indent=1))
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more in {file}" if len(names) > 5 else "")
        raise NonFiniteLoss(
            f"the {name} is {values[name]} at step {step}, with learning rate {values['learning_rate']:.3g} and "
            f"questions {shown}; this step was not saved: lower optimizer.learning_rate or optimizer.clip_norm, or "
            "fix these examples"
        )
