"""The training loop: steps, and what has to happen between them.

The order of events after a step is load-bearing: its loss is looked at before anything is saved, so that no checkpoint
ever holds parameters from a loss that was not finite; evaluation comes before the save, so that the checkpoint carries
its metrics; and metrics are fetched one step late, so that the devices never wait for the host.
"""

import dataclasses
from collections.abc import Callable, Mapping

import jax

from endx_jax.data.batches import BatchStream
from endx_jax.errors import RunInterrupted
from endx_jax.parallel.distributed import barrier
from endx_jax.parallel.sharding import to_global
from endx_jax.settings import check, key
from endx_jax.training.checkpoints import Checkpoints
from endx_jax.training.monitor import Monitor
from endx_jax.training.preemption import Preemption
from endx_jax.training.state import TrainState
from endx_jax.training.trace import Trace


@dataclasses.dataclass(frozen=True)
class TrainSettings:
    """Held in `config.train`. Exactly one of `steps` and `epochs` is set; it is the schedule's length too."""

    global_batch_size: int = key(64, "pairs a step, over all devices and processes")
    steps: int = key(0, "steps of the whole run; 0: see `epochs`")
    epochs: float = key(1.0, "passes over the training pairs; 0: see `steps`")
    stop_at_step: int = key(
        0, "save and leave at this step, as a preemption would; 0: go on to the end", changes_results=False
    )
    log_every: int = key(10, "steps between lines of metrics.jsonl", changes_results=False)
    evaluate_every: int = key(0, "steps between validations, each with a checkpoint; 0: only at the end")
    checkpoint_every: int = key(100, "steps between checkpoints", changes_results=False)
    keep_checkpoints: int = key(2, "newest checkpoints to keep, beside the best", changes_results=False)
    tower_chunk: int = key(
        -1,
        "pairs that a device encodes at a time, to save memory; 0: all its own; -1: all if they fit, else what does",
        changes_results=False,
    )
    profile_steps: int = key(
        0, "steps of which a trace is written into the workdir's `profile`, from the third on", changes_results=False
    )
    peer_timeout: float = key(
        120.0,
        "seconds after which a process that gives no sign of life ends the run on all others, with status 75; 0: never",
        changes_results=False,
    )
    wandb_project: str = key(
        "", "of Weights & Biases, to log to beside metrics.jsonl; needs the extra [wandb]", changes_results=False
    )
    compilation_cache: str = key(
        "~/.cache/endx_jax/xla",
        "folder for compiled programs, to start faster the next time; empty: none",
        changes_results=False,
    )

    def __post_init__(self):
        check(
            self.global_batch_size > 1, "train.global_batch_size must be at least 2: the negatives come from the batch"
        )
        check(
            (self.steps > 0) != (self.epochs > 0),
            f"train.steps and train.epochs are {self.steps} and {self.epochs}: set one of them and the other to 0",
        )
        check(self.log_every > 0 and self.checkpoint_every > 0, "train.log_every and checkpoint_every must be positive")
        check(self.profile_steps >= 0, f"train.profile_steps is {self.profile_steps}; it must not be negative")
        check(
            self.peer_timeout == 0 or 10 <= self.peer_timeout <= 300,
            f"train.peer_timeout is {self.peer_timeout}; it takes 10 to 300 seconds, or 0 for none",
        )
        check(self.keep_checkpoints > 0, "train.keep_checkpoints must be positive")
        check(self.tower_chunk >= -1, f"train.tower_chunk is {self.tower_chunk}; it must be positive, 0 or -1")

    def total_steps(self, pairs: int) -> int:
        """Steps of the whole run over `pairs` training pairs."""
        return self.steps or max(1, round(self.epochs * pairs / self.global_batch_size))


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
    trace: Trace,
    preemption: Preemption,
    reading_threads: int = 2,
) -> TrainState:
    """Trains from the state's step to the end, or to `settings.stop_at_step`.

    Args:
      state: where to begin.
      train_step: from `make_train_step`.
      stream: the batches; this process's rows.
      settings: how often things happen.
      steps: of the whole run.
      mesh: of the batch.
      checkpoints: where to save.
      monitor: where numbers go; it raises on a loss that is not finite.
      validate: parameters to metrics; None where there is no validation split.
      trace: what records some steps, if any.
      preemption: says when to save and leave early.
      reading_threads: that prepare batches.

    Returns:
      The state after the last step, saved.

    Raises:
      RunInterrupted: told to leave, it has saved.
    """
    start = int(state.step)
    stop = min(steps, settings.stop_at_step or steps)
    batches = stream.iterate(start, stop, reading_threads)
    for step in range(start, stop):
        with monitor.reading():
            rows = next(batches)
        batch = to_global(rows, mesh, settings.global_batch_size)
        with trace.step(step):
            state, metrics = train_step(state, batch)
        done = step + 1
        trace.done(done, metrics)
        monitor.push(done, metrics)
        checkpoints.look()
        leaving = preemption.agreed(mesh)
        validate_now = validate if done == steps or _due(done, settings.evaluate_every) else None
        if validate_now or _due(done, settings.checkpoint_every) or done == stop or leaving:
            monitor.flush()
            with monitor.paused("validating"):
                metrics = validate_now(state.params) if validate_now else None
                if metrics:
                    monitor.validated(done, metrics)
            with monitor.paused("saving"):
                checkpoints.save(done, state, metrics)
        if leaving:
            checkpoints.wait()
            barrier("saved-to-leave")  # nobody is gone while the first process still hashes
            raise RunInterrupted(f"told to stop (SIGTERM): saved at step {done} of {steps}; the same command goes on")
    with monitor.paused("saving"):
        checkpoints.wait()
    return state


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
