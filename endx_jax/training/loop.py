"""Training loop: steps, logging, validation and checkpoints.

The order of operations after a step matters. The loss is checked before a save, so that no checkpoint holds parameters
from a loss that is not finite. Validation precedes the save, so that the checkpoint's manifest has its metrics. Metrics
are fetched one step later, so that the devices never wait for the host.
"""

import dataclasses
import signal
from collections.abc import Callable, Mapping
from time import monotonic

import jax

from endx_jax.data.batches import BatchStream
from endx_jax.errors import RunInterrupted
from endx_jax.parallel.agreement import check_parameters, decided
from endx_jax.parallel.distributed import end_together, is_primary
from endx_jax.parallel.sharding import to_global
from endx_jax.settings import check, check_range, key
from endx_jax.training.checkpoints import Checkpoints
from endx_jax.training.monitor import Monitor
from endx_jax.training.preemption import NAMES, SAVE, Preemption
from endx_jax.training.state import TrainState
from endx_jax.training.trace import Trace


@dataclasses.dataclass(frozen=True)
class TrainSettings:
    """Settings of training, `config.train`; `steps` or `epochs` sets the length of the schedule."""

    global_batch_size: int = key(64, "Pairs per step, over all devices. 0: 32 to 128, by the number of pairs.")
    steps: int = key(0, "Steps of the whole run. 0: given by `epochs`.")
    epochs: float = key(1.0, "Passes over the training pairs. 0: given by `steps`, or by the number of pairs.")
    stop_at_step: int = key(
        0,
        "Step at which the run saves a checkpoint and stops, as at a preemption. 0: runs to the end.",
        changes_results=False,
    )
    log_every: int = key(10, "Steps between lines of metrics.jsonl.", changes_results=False)
    evaluate_every: int = key(
        0,
        "Steps between validations, on the validation split and `evaluation.sets`; each also saves a checkpoint. 0: "
        "only at the end.",
    )
    patience: int = key(
        0,
        "Validations in a row without a new best `evaluation.metric` after which training ends. 0: it ends after the "
        "last step.",
    )
    checkpoint_every: int = key(100, "Steps between checkpoints.", changes_results=False)
    checkpoint_minutes: float = key(10.0, "Most minutes between checkpoints. 0: no limit.", changes_results=False)
    keep_checkpoints: int = key(2, "Newest checkpoints that are kept, besides the best one.", changes_results=False)
    tower_chunk: int = key(
        -1,
        "Pairs that each device encodes at a time, to save memory. 0: all its pairs; -1: as many as fit into memory, "
        "on accelerators by the compiled step.",
        changes_results=False,
    )
    profile_steps: int = key(
        0,
        "Number of steps to profile, starting with the third; the trace is in the workdir's `profile`. 0: none.",
        changes_results=False,
    )
    profiler_port: int = key(
        0,
        "Port of JAX's profiler server in each process, from which TensorBoard captures traces. 0: no server.",
        changes_results=False,
    )
    wandb_project: str = key(
        "", "Weights & Biases project to log to, besides metrics.jsonl. Needs the extra [wandb].", changes_results=False
    )
    compilation_cache: str = key(
        "~/.cache/endx_jax/xla", "Folder of the cache of compiled programs. Empty: no cache.", changes_results=False
    )

    def __post_init__(self):
        check(0 <= self.global_batch_size != 1, "train.global_batch_size must be at least 2, for negatives, or 0")
        check(
            min(self.steps, self.epochs) == 0 <= max(self.steps, self.epochs),
            f"train.steps={self.steps} and train.epochs={self.epochs}: set one of the two",
        )
        check(self.log_every > 0 and self.checkpoint_every > 0, "train.log_every and checkpoint_every must be positive")
        check(
            self.patience == 0 or (self.patience > 0 and self.evaluate_every > 0),
            f"train.patience={self.patience} must be a number of validations, and needs train.evaluate_every",
        )
        check(self.profile_steps >= 0, f"train.profile_steps is {self.profile_steps}; it must not be negative")
        check_range("train.profiler_port", self.profiler_port, 0, 65535)
        check(self.keep_checkpoints > 0, "train.keep_checkpoints must be positive")
        check(self.tower_chunk >= -1, f"train.tower_chunk is {self.tower_chunk}; it must be positive, 0 or -1")

    def sized(self, pairs: int) -> "TrainSettings":
        """Returns settings with a batch size and a length for `pairs` training pairs, where they are 0."""
        usual = 32 if pairs < 1_000 else 64 if pairs < 100_000 else 128
        size = self.global_batch_size or min(usual, 2 ** max(1, pairs.bit_length() - 1))
        epochs = self.epochs if self.steps or self.epochs else 5.0 if pairs < 1_000 else 3.0 if pairs < 100_000 else 1.0
        return dataclasses.replace(self, global_batch_size=size, epochs=epochs)

    def total_steps(self, pairs: int) -> int:
        """Returns the number of steps of a run with `pairs` training pairs."""
        return self.steps or max(1, round(self.epochs * pairs / self.global_batch_size))


@dataclasses.dataclass
class EarlyStopping:
    """Ends training after `patience` validations in a row without a new best value of a metric.

    It has no state to save: validations are at multiples of `every`, and the best checkpoint, which is always kept, has
    the step and the value of the best one. So a resumed run stops where an uninterrupted one does.

    Attributes:
      metric: name of the metric; higher is better.
      patience: number of validations; 0 to never stop.
      every: steps between validations.
      best: step and value of the best validation; None before the first.
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
        return decided(lambda: without >= self.patience, "early-stopping")


def fit(
    state: TrainState,
    train_step: Callable,
    stream: BatchStream,
    settings: TrainSettings,
    *,
    steps: int,
    mesh: jax.sharding.Mesh,
    checkpoints: Checkpoints,
    monitor: Monitor,
    validate: Callable[[dict], Mapping[str, float]] | None,
    stopping: EarlyStopping,
    trace: Trace,
    preemption: Preemption,
    reading_threads: int = 2,
) -> TrainState:
    """Trains from the state's step to the end of the run, which may be early, or to `settings.stop_at_step`.

    Args:
      state: initial or restored state.
      train_step: step function of `make_train_step`.
      stream: batches with this process's rows.
      settings: batch size and intervals of validation and checkpoints.
      steps: number of steps of the whole run.
      mesh: device mesh over which the batch is sharded.
      checkpoints: destination of checkpoints.
      monitor: destination of metrics; raises EndxError if a loss is not finite.
      validate: function of the parameters that returns validation metrics; None if there is nothing to validate on.
      stopping: early stopping, which knows the validations before the state's step.
      trace: profiler.
      preemption: handler of SIGTERM and Ctrl-C.
      reading_threads: number of threads that prepare batches.

    Returns:
      The state after the last step, which is also saved.

    Raises:
      RunInterrupted, KeyboardInterrupt: a process received SIGTERM or Ctrl-C; the state was saved first.
    """
    start = int(state.step)
    stop = start if stopping.stops_at(start) else min(steps, settings.stop_at_step or steps)
    saved_at = monotonic()
    batches = stream.iterate(start, stop, reading_threads)
    for step in range(start, stop):
        with monitor.data_wait():
            rows = next(batches)
        batch = to_global(rows, mesh, settings.global_batch_size)
        with trace.step(step):
            state, metrics = train_step(state, batch)
        done = step + 1
        trace.end_step(done, metrics)
        monitor.push(done, metrics)
        # Only the primary's clock counts, and each interval once, since several processes read it one step later. After
        # a failed write, any process asks for the next one, which raises the error on all.
        late = is_primary() and 0 < settings.checkpoint_minutes * 60 <= monotonic() - saved_at
        late = late or checkpoints.has_failed()
        asked = preemption.agreed(mesh, late)
        validate_now = validate if done == steps or _due(done, settings.evaluate_every) else None
        if validate_now or _due(done, settings.checkpoint_every) or done == stop or asked:
            monitor.flush()
            with monitor.paused():
                if validate_now:
                    check_parameters(state.params, done)
                metrics = validate_now(state.params) if validate_now else None
                if metrics:
                    monitor.log_validation(done, metrics, stopping.metric)
                    stopping.add(done, metrics)
                checkpoints.save(done, state, metrics)
            late = True
        saved_at = monotonic() if late else saved_at
        if asked > SAVE:
            checkpoints.wait()
            end_together()
            kind = KeyboardInterrupt if asked == signal.SIGINT else RunInterrupted
            raise kind(f"stopped by {NAMES[asked]}: saved at step {done} of {steps}; run the same command to resume")
        if validate_now and stopping.stops_at(done):
            break
    with monitor.paused():
        checkpoints.wait()
    return state


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
