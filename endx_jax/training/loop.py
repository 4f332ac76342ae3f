"""Training loop and its settings. Metrics are fetched one call later, so that the devices never wait for the host."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager

import jax

from endx_jax.batch import Batch
from endx_jax.parallel.environment import PROGRAMS
from endx_jax.settings import key, require
from endx_jax.training.compilation import shape_of
from endx_jax.training.step import Stacked, TrainState


@dataclasses.dataclass(frozen=True)
class TrainSettings:
    """Settings of training, `config.train`; `steps` or `epochs` sets the length of the schedule."""

    global_batch_size: int = key(64, "Pairs per step, over all devices. 0: 32 to 128, by the number of pairs.", auto=0)
    steps: int = key(0, "Steps of the whole run. 0: given by `epochs`.")
    epochs: float = key(1.0, "Passes over the training pairs. 0: given by `steps`, or by the number of pairs.")
    stop_at_step: int = key(
        0,
        "Step at which the run saves a checkpoint and stops, as at a preemption. 0: runs to the end.",
        changes_results=False,
    )
    steps_per_call: int = key(
        1,
        "Steps of one call of the devices, for GPUs whose steps end before the host has prepared the next. No call "
        "goes past a checkpoint or a validation, and a signal waits for its end.",
        changes_results=False,
        least=1,
    )
    log_every: int = key(10, "Steps between lines of metrics.jsonl.", changes_results=False, least=1)
    evaluate_every: int = key(
        0,
        "Steps between validations, on the validation split and `evaluation.sets`; each also saves a checkpoint. 0: "
        "only at the end.",
    )
    patience: int = key(
        0,
        "Validations in a row without a new best `evaluation.metric` after which training ends. 0: it ends after the "
        "last step.",
        least=0,
    )
    checkpoint_every: int = key(100, "Steps between checkpoints.", changes_results=False, least=1)
    checkpoint_minutes: float = key(10.0, "Most minutes between checkpoints. 0: no limit.", changes_results=False)
    keep_checkpoints: int = key(
        2, "Newest checkpoints that are kept, besides the best one.", changes_results=False, least=1
    )
    tower_chunk: int = key(
        -1,
        "Pairs that each device encodes at a time, to save memory. 0: all its pairs; -1: as many as fit into memory, "
        "on accelerators by the compiled step.",
        changes_results=False,
        least=0,
    )
    profile_steps: int = key(
        0,
        "Number of steps to profile, starting with the third; the trace is in the workdir's `profile`. 0: none.",
        changes_results=False,
        least=0,
    )
    profiler_port: int = key(
        0,
        "Port of JAX's profiler server for TensorBoard; further processes of a host have the next ports. 0: no server.",
        changes_results=False,
        least=0,
        most=65535,
    )
    wandb_project: str = key(
        "", "Weights & Biases project to log to, besides metrics.jsonl. Needs the extra [wandb].", changes_results=False
    )
    compilation_cache: str = key(
        PROGRAMS, "Folder of the cache of compiled programs. Empty: no cache.", changes_results=False
    )

    def __post_init__(self):
        require(0 <= self.global_batch_size != 1, "train.global_batch_size must be at least 2, for negatives, or 0")
        one = min(self.steps, self.epochs) == 0 <= max(self.steps, self.epochs)
        require(one, f"train.steps={self.steps} and train.epochs={self.epochs}: set one of the two")
        validated = self.patience == 0 or self.evaluate_every > 0
        require(validated, f"train.patience={self.patience} needs train.evaluate_every above 0")

    def pauses_after(self, step: int) -> bool:
        """Returns true if a checkpoint or a validation is due after this number of steps: calls end there."""
        return any(every > 0 and step % every == 0 for every in (self.checkpoint_every, self.evaluate_every))

    def sized(self, pairs: int) -> "TrainSettings":
        """Returns settings with a batch size and a length for `pairs` training pairs, where they are 0."""
        usual = 32 if pairs < 1_000 else 64 if pairs < 100_000 else 128
        size = self.global_batch_size or min(usual, 2 ** max(1, pairs.bit_length() - 1))
        epochs = self.epochs if self.steps or self.epochs else 5.0 if pairs < 1_000 else 3.0 if pairs < 100_000 else 1.0
        return dataclasses.replace(self, global_batch_size=size, epochs=epochs)

    def total_steps(self, pairs: int) -> int:
        """Returns the number of steps of a run with `pairs` training pairs."""
        return self.steps or max(1, round(self.epochs * pairs / self.global_batch_size))


@dataclasses.dataclass(frozen=True)
class Hook:
    """Action that runs after each call of the training step that contains a step that is `due`.

    It gets the number of finished steps, the state, and the metrics of the call: scalars for one step, [S] for S steps.
    """

    action: Callable[[int, TrainState, dict[str, jax.Array]], bool | None]
    due: Callable[[int], bool]

    @classmethod
    def every(cls, steps: int, action: Callable[..., bool | None], *also: int) -> "Hook":
        """Returns a hook after each `steps` steps, if they are positive, and after the steps in `also`."""
        return cls(action, lambda done: done in also or (steps > 0 and done % steps == 0))


def calls(batches: Iterable[Batch], start: int, settings: TrainSettings) -> Iterator[list[Batch]]:
    """Groups the batches of consecutive steps into calls of `settings.steps_per_call` steps.

    A call has that many batches of one shape, none of which but the last is before a pause; all others have one batch,
    so that two programs of each shape are enough.

    Args:
      batches: batches of the steps from `start` on.
      start: number of steps before the first batch.
      settings: settings of the run.
    """
    waiting: list[Batch] = []
    for done, batch in enumerate(batches, start=start + 1):
        if waiting and shape_of(batch) != shape_of(waiting[0]):
            yield from ([one] for one in waiting)
            waiting = []
        waiting.append(batch)
        if len(waiting) == settings.steps_per_call:
            yield waiting
            waiting = []
        elif settings.pauses_after(done):
            yield from ([one] for one in waiting)
            waiting = []
    yield from ([one] for one in waiting)


def fit(
    state: TrainState,
    train_step: Callable[..., tuple[TrainState, dict[str, jax.Array]]],
    batches: Iterable[Batch | Stacked],
    hooks: Sequence[Hook],
    around: Callable[[int], AbstractContextManager] = contextlib.nullcontext,
) -> TrainState:
    """Trains until the last batch, or until an action returns true; returns the state after the last step.

    Args:
      state: initial or restored state, of the step before the first batch.
      train_step: step function of `make_train_step`.
      batches: global batches on the devices, those of one call stacked.
      hooks: hooks; after each call, all actions that are due run in this order, also if one of them returns true.
      around: function from the number of a call's first step to the context in which it runs, such as `Trace.step`.
    """
    done = int(state.step)
    for batch in batches:
        with around(done):
            state, metrics = train_step(state, batch)
        steps = range(done + 1, done + 1 + (batch.steps if isinstance(batch, Stacked) else 1))
        done = steps[-1]
        ends = [hook.action(done, state, metrics) for hook in hooks if any(map(hook.due, steps))]
        if any(ends):
            break
    return state
