"""Plan of a run's batches and steps, made from shapes only; training and `endx plan` use it."""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Sequence

import jax
import optax
from jax.sharding import Mesh

from endx_jax.batch import Batch
from endx_jax.data.batches import BatchStream, Pairs
from endx_jax.experiment.choices import Choice, choices, first_that_fits
from endx_jax.experiment.execution import activation_bytes, largest_batch, make_execution
from endx_jax.experiment.manifest import environment
from endx_jax.experiment.model import Model
from endx_jax.models import sharding_hints
from endx_jax.parallel.execution import Execution
from endx_jax.parallel.memory import Memory, bytes_held
from endx_jax.parallel.sharding import batch_shards, local_rows, state_shardings
from endx_jax.settings import results_only
from endx_jax.training.checkpoints import abstract
from endx_jax.training.optimizer import make_optimizer, make_schedule
from endx_jax.training.state import TrainState, split_frozen
from endx_jax.training.step import Objective, Step, make_train_step


@dataclasses.dataclass(frozen=True)
class TrainPlan:
    """Batches, steps, execution and optimizer of a run.

    Attributes:
      model: model to train, with the chosen rematerialisation.
      mesh: device mesh.
      choice: chosen chunks and rematerialisation.
      choices: all that the settings leave, best first.
      padded: batches with this process's rows, not packed.
      stream: these batches, packed for the execution.
      steps: number of steps of the whole run.
      steps_per_epoch: number of steps of one pass over the training pairs.
      execution: division of a step over devices and chunks.
      objective: objective, prepared for this execution.
      optimizer: optimizer with its schedule.
      memory: memory of the devices.
      state: bytes of parameters and optimizer state on one device.
      room: bytes available to activations on one device.
      platform: platform of the run's devices.
    """

    model: Model
    mesh: Mesh
    choice: Choice
    choices: Sequence[Choice]
    padded: BatchStream
    stream: BatchStream
    steps: int
    steps_per_epoch: float
    execution: Execution
    objective: Objective
    optimizer: optax.GradientTransformation
    memory: Memory
    state: int
    room: int
    platform: str

    @functools.cached_property
    def activations(self) -> int:
        """Estimated bytes of activations on one device: see `activation_bytes`."""
        return activation_bytes(self.model, self.mesh, self.execution, self.stream)

    @property
    def expected_peak(self) -> int:
        """Estimated peak memory of a step in bytes, for this process on a CPU and for one device otherwise."""
        return self.memory.peak(self.state + self.activations)

    @property
    def is_asked(self) -> bool:
        """True if the compiler is asked for the memory of several choices. On CPUs the estimate is good enough."""
        return len(self.choices) > 1 and self.platform != "cpu"

    def batches_to_ask(self) -> list[Batch]:
        """Returns the batches to compile a step for before its memory is known: the largest if several may follow."""
        return [largest_batch(self.stream)] if self.is_asked else self.stream.profiles()

    def key(self) -> str:
        """Returns a hash of all that determines the choice: settings, shapes, devices, their memory and versions."""
        parts = (
            results_only(self.model.settings),
            [source.config for source in self.model.sources.values()],
            self.choices,
            self.execution.dtype,
            self.execution.loss_tile,
            largest_batch(self.stream),
            self.room,
            self.mesh.shape,
            self.mesh.devices.flat[0].device_kind,
            {name: environment()[name] for name in ("versions", "commit")},
        )
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]

    def only(self, choice: Choice) -> "TrainPlan":
        """Returns the plan with a choice that is known to be right."""
        return dataclasses.replace(self.with_choice(choice), choices=(choice,))

    def with_choice(self, choice: Choice) -> "TrainPlan":
        """Returns the plan of the same run for another choice of `choices`."""
        if choice == self.choice:
            return self
        model = _with_remat(self.model, choice.remat)
        execution, stream = make_execution(model, self.mesh, self.padded, self.steps, choice)
        objective = model.objective.for_run(execution, self.steps_per_epoch)
        return dataclasses.replace(
            self, model=model, choice=choice, stream=stream, execution=execution, objective=objective
        )

    def fitted(self, compiled: Callable[["TrainPlan"], int] | None = None) -> "TrainPlan":
        """Returns the plan for the first choice whose step fits into memory: see `first_that_fits`.

        Args:
          compiled: function that compiles the step of a plan and returns its bytes on one device; None to trust the
            estimate from shapes.
        """
        plans = functools.cache(self.with_choice)

        def expected(choice: Choice) -> int:
            return plans(choice).activations

        def needed(choice: Choice) -> int:
            return compiled(plans(choice)) - self.state if compiled else expected(choice)

        return plans(first_that_fits(self.choices, self.room, expected, needed))


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
    """Plans the batches of a run, their packing, and the execution of its steps as far as shapes tell.

    Args:
      model: model to train.
      mesh: device mesh.
      pairs: training pairs.
      memory: memory of each device.
      platform: platform of the run's devices; empty for that of the mesh.

    Returns:
      The plan for the first choice that should fit. On CPUs, where the estimate stands unless the compiled step needs
      more, larger choices are left out.
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
    platform = platform or sharding_hints.platform(mesh)
    tokens = max(1, sum(side.places for side in stream.typical().sides))
    ordered = choices(settings, size // batch_shards(mesh), tokens, platform)
    model = _with_remat(model, ordered[0].remat)
    execution, packed = make_execution(model, mesh, stream, steps, ordered[0])
    optimizer = make_optimizer(
        settings.optimizer.fitted(steps), steps, split_frozen(model.abstract_params, model.frozen)[0]
    )
    state = bytes_held(_abstract_state(model, mesh, optimizer))
    first = TrainPlan(
        model=model,
        mesh=mesh,
        choice=ordered[0],
        choices=ordered,
        padded=stream,
        stream=packed,
        steps=steps,
        steps_per_epoch=len(pairs) / size,
        execution=execution,
        objective=model.objective.for_run(execution, len(pairs) / size),
        optimizer=optimizer,
        memory=memory,
        state=state,
        room=memory.activations(state, platform),
        platform=platform,
    )
    start = first.fitted() if len(ordered) > 1 else first
    return dataclasses.replace(start, choices=ordered[ordered.index(start.choice) :]) if platform == "cpu" else start


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


def _with_remat(model: Model, remat: str) -> Model:
    """Returns the model with a rematerialisation policy; the model itself if its settings build the same."""
    settings = model.settings
    if remat == settings.model.policy:
        return model
    settings = dataclasses.replace(settings, model=dataclasses.replace(settings.model, remat=remat))
    return dataclasses.replace(model, settings=settings)


def _abstract_state(model: Model, mesh: Mesh, optimizer: optax.GradientTransformation) -> TrainState:
    """Returns the shapes and shardings of the initial state."""
    create = functools.partial(TrainState.create, optimizer=optimizer, frozen=model.frozen)
    shapes = jax.eval_shape(create, model.abstract_params)
    return abstract(shapes, state_shardings(shapes, mesh))
