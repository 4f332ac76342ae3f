"""What a run computes at each step, from shapes: the same for a run that begins and for one that is only planned."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import optax
from jax.sharding import Mesh

from endx_jax.data.batches import BatchStream, Pairs
from endx_jax.data.pair_batches import PairStream
from endx_jax.experiment.execution import choose_execution
from endx_jax.experiment.model import Model
from endx_jax.objectives import PairSettings
from endx_jax.parallel.execution import Execution
from endx_jax.parallel.sharding import local_rows, state_shardings
from endx_jax.training.checkpoints import abstract
from endx_jax.training.optimizer import make_optimizer, make_schedule
from endx_jax.training.partition import split_frozen
from endx_jax.training.state import TrainState
from endx_jax.training.step import Objective, Step, make_train_step


@dataclasses.dataclass(frozen=True)
class Arrangement:
    """Batches, steps and update of a run on some devices.

    Attributes:
      stream: the batches; this process's rows.
      steps: of the whole run.
      execution: how a step is cut up.
      objective: as this run computes it on these devices.
      optimizer: with its schedule over those steps.
    """

    stream: BatchStream
    steps: int
    execution: Execution
    objective: Objective
    optimizer: optax.GradientTransformation


@dataclasses.dataclass(frozen=True)
class AbstractStep:
    """A step that can be lowered, and the state that it takes.

    Attributes:
      create: parameters to the state before the first step.
      state: its shapes, with their shardings.
      train_step: from `make_train_step`.
    """

    create: Callable[[dict], TrainState]
    state: TrainState
    train_step: Step

    @property
    def shardings(self) -> TrainState:
        """Where each leaf of the state lives."""
        return jax.tree.map(lambda leaf: leaf.sharding, self.state)


def arrange(model: Model, mesh: Mesh, pairs: Pairs, memory: int | None = None) -> Arrangement:
    """Decides about the batches of a run, how they are packed, and how its steps are cut up.

    Args:
      model: what is trained.
      mesh: the devices.
      pairs: what it is trained on.
      memory: bytes of a device's memory, where it is another than those that are here: see `choose_execution`.
    """
    settings = model.settings
    size = settings.train.global_batch_size
    steps = settings.train.total_steps(len(pairs))
    make_stream: Callable[..., BatchStream] = BatchStream
    if isinstance(settings.objective, PairSettings):
        make_stream = functools.partial(PairStream, negatives=settings.objective.negatives)
    stream = make_stream(
        pairs,
        seed=settings.seed,
        global_batch_size=size,
        rows=local_rows(mesh, size),
        group_size=settings.data.group_size,
        hard_negatives=settings.data.hard_negatives,
        weights=(1.0, *(weight for _, weight in settings.data.mixture)),
    )
    execution = choose_execution(model, mesh, stream, memory)
    if execution.packed:
        stream = stream.without_padding(steps, shards=execution.shards, chunks=execution.chunks(size))
    trained, _ = split_frozen(model.abstract_params(), model.frozen)
    return Arrangement(
        stream=stream,
        steps=steps,
        execution=execution,
        objective=model.objective.prepare(execution, len(pairs) / size),
        optimizer=make_optimizer(settings.optimizer, steps, trained),
    )


def abstract_step(model: Model, mesh: Mesh, arrangement: Arrangement) -> AbstractStep:
    """The step of a run, and the shapes of its state; nothing is compiled or computed."""
    settings = model.settings
    create = functools.partial(TrainState.create, optimizer=arrangement.optimizer, frozen=model.frozen)
    shapes = jax.eval_shape(create, model.abstract_params())
    shardings = state_shardings(shapes, mesh)
    train_step = make_train_step(
        arrangement.objective,
        arrangement.optimizer,
        make_schedule(settings.optimizer, arrangement.steps),
        seed=settings.seed,
        shardings=shardings,
        frozen=model.frozen,
    )
    return AbstractStep(create, abstract(shapes, shardings), train_step)
