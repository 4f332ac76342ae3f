"""Plan of a run's batches and steps, made from shapes only; training and `endx plan` use it."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import optax
from jax.sharding import Mesh

from endx_jax.data.batches import BatchStream, Pairs
from endx_jax.experiment.execution import activation_bytes, choose_execution
from endx_jax.experiment.model import Model
from endx_jax.models import sharding_hints
from endx_jax.parallel.execution import Execution
from endx_jax.parallel.memory import Memory, bytes_held
from endx_jax.parallel.sharding import local_rows, state_shardings
from endx_jax.training.checkpoints import abstract
from endx_jax.training.optimizer import make_optimizer, make_schedule
from endx_jax.training.state import TrainState, split_frozen
from endx_jax.training.step import Objective, Step, make_train_step


@dataclasses.dataclass(frozen=True)
class TrainPlan:
    """Batches, steps, execution and optimizer of a run.

    Attributes:
      stream: batches with this process's rows.
      steps: number of steps of the whole run.
      execution: division of a step over devices and chunks.
      objective: objective, prepared for this execution.
      optimizer: optimizer with its schedule.
      memory: memory of the devices.
      state: bytes of parameters and optimizer state on one device.
      activations: estimated bytes of activations on one device (see `activation_bytes`); None if not estimated yet.
    """

    stream: BatchStream
    steps: int
    execution: Execution
    objective: Objective
    optimizer: optax.GradientTransformation
    memory: Memory
    state: int
    activations: int | None = None

    def expected_peak(self, model: Model) -> int:
        """Estimates the peak memory of a step in bytes, for this process on a CPU and for one device otherwise."""
        kept = self.activations
        if kept is None:
            kept = activation_bytes(model, self.execution, self.stream)
        return self.memory.peak(self.state + kept)


@dataclasses.dataclass(frozen=True)
class AbstractStep:
    """Training step that can be lowered, with the shapes of its state.

    Attributes:
      create: function from parameters to the initial state.
      state: shapes and shardings of the state.
      train_step: step function of `make_train_step`.
    """

    create: Callable[[dict], TrainState]
    state: TrainState
    train_step: Step

    @property
    def shardings(self) -> TrainState:
        """Sharding of each leaf of the state."""
        return jax.tree.map(lambda leaf: leaf.sharding, self.state)


def plan_training(model: Model, mesh: Mesh, pairs: Pairs, memory: Memory, platform: str = "") -> TrainPlan:
    """Plans the batches of a run, their packing, and the execution of its steps.

    Args:
      model: model to train.
      mesh: device mesh.
      pairs: training pairs.
      memory: memory of each device.
      platform: platform of the run's devices; empty for that of the mesh.
    """
    settings = model.settings
    size = settings.train.global_batch_size
    steps = settings.train.total_steps(len(pairs))
    stream = model.method.stream(
        pairs,
        settings.objective,
        seed=settings.seed,
        global_batch_size=size,
        rows=local_rows(mesh, size),
        group_size=settings.data.group_size,
        hard_negatives=settings.data.hard_negatives,
        sources=settings.data.sources,
    )
    params = model.abstract_params
    optimizer = make_optimizer(settings.optimizer.fitted(steps), steps, split_frozen(params, model.frozen)[0])
    state = bytes_held(_abstract_state(model, mesh, optimizer))
    budget, platform = memory.activations(state), platform or sharding_hints.platform(mesh)
    execution, stream, activations = choose_execution(model, mesh, stream, steps, budget, platform)
    return TrainPlan(
        stream=stream,
        steps=steps,
        execution=execution,
        objective=model.objective.for_run(execution, len(pairs) / size),
        optimizer=optimizer,
        memory=memory,
        state=state,
        activations=activations,
    )


def abstract_step(model: Model, mesh: Mesh, train_plan: TrainPlan) -> AbstractStep:
    """Makes the step of a run and the shapes of its state, without compiling or computing anything."""
    settings = model.settings
    state = _abstract_state(model, mesh, train_plan.optimizer)
    train_step = make_train_step(
        train_plan.objective,
        train_plan.optimizer,
        make_schedule(settings.optimizer.fitted(train_plan.steps), train_plan.steps),
        seed=settings.seed,
        shardings=jax.tree.map(lambda leaf: leaf.sharding, state),
        frozen=model.frozen,
    )
    create = functools.partial(TrainState.create, optimizer=train_plan.optimizer, frozen=model.frozen)
    return AbstractStep(create, state, train_step)


def _abstract_state(model: Model, mesh: Mesh, optimizer: optax.GradientTransformation) -> TrainState:
    """Returns the shapes and shardings of the initial state."""
    create = functools.partial(TrainState.create, optimizer=optimizer, frozen=model.frozen)
    shapes = jax.eval_shape(create, model.abstract_params)
    return abstract(shapes, state_shardings(shapes, mesh))
