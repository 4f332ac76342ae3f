"""Plan of a run's batches, steps and memory, made from shapes only; training and `endx plan` use it."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from endx_jax.batch import Batch, Tokens
from endx_jax.data.batches.collator import BatchStream
from endx_jax.data.batches.packing import MAX_PROFILES
from endx_jax.data.batches.sampler import sampler_options
from endx_jax.data.batches.token_tables import Pairs
from endx_jax.experiment.config import Settings
from endx_jax.experiment.model import Model, with_remat
from endx_jax.experiment.step_memory import StepMemory, first_that_fits, options_by_cost
from endx_jax.methods.objective import Objective
from endx_jax.models import sharding_hints
from endx_jax.models.dropout import example_keys
from endx_jax.parallel.execution import Execution
from endx_jax.parallel.memory import DeviceMemory, bytes_held, bytes_kept
from endx_jax.parallel.sharding import batch_shards, local_rows, parameter_paths, rule_of, state_shardings
from endx_jax.training.checkpoints import abstract
from endx_jax.training.optimizer import make_optimizer, make_schedule
from endx_jax.training.step import Stacked, TrainState, make_train_step, merge_frozen, split_frozen

# Largest batch whose loss has one array of scores and computes it whole, which is faster while it takes little memory;
# scores in memory at a time of larger ones.
DENSE_UP_TO, TILE_SCORES = 2048, 1 << 22


@dataclasses.dataclass(frozen=True)
class TrainPlan:
    """Batches, execution, step and memory of a run with one choice of chunks and rematerialisation.

    Attributes:
      settings: final settings of the run.
      model: model to train.
      mesh: device mesh.
      padded: batches with this process's rows, not packed.
      memory: memory of the devices.
      platform: platform of the run's devices.
      choices: all that the settings leave, best first.
      choice: the chosen one.
    """

    settings: Settings
    model: Model
    mesh: Mesh
    padded: BatchStream
    memory: DeviceMemory
    platform: str
    choices: Sequence[StepMemory]
    choice: StepMemory

    @property
    def global_batch_size(self) -> int:
        """Pairs of a step over all devices."""
        return self.settings.train.global_batch_size

    @property
    def steps(self) -> int:
        """Number of steps of the whole run."""
        return self.settings.train.total_steps(len(self.padded.pairs))

    @functools.cached_property
    def execution(self) -> Execution:
        """Division of a step over devices and chunks."""
        settings, size = self.settings, self.global_batch_size
        arrays = settings.objective.score_arrays(settings.data.hard_negatives)
        tile = loss_tile(settings.objective.loss_tile, size, arrays)
        dtype = self.model.dual_encoder.answer.token_embedder.dtype
        split, frozen = self.mesh.shape["fsdp"] > 1, bool(self.model.base)
        # Chunks gather matrices whole before their loop, and reduce the gradient after it, unless the matrices are
        # frozen, or they and their gradient do not fit.
        by_layer = split and (frozen or 2 * sum(self._layer_bytes) > self.room)
        execution = Execution(self.mesh, self.choice.tower_chunk, tile, dtype=dtype, by_layer=by_layer)
        # Each device encodes packed texts by itself. Trained matrices would be whole there, or their gradient reduced
        # layer by layer, which the compiler does better for all devices at once.
        packed = not split or frozen or execution.chunks(size) > 1
        return dataclasses.replace(execution, packed=packed and not self.model.method.frozen_towers)

    @functools.cached_property
    def stream(self) -> BatchStream:
        """Batches with this process's rows, packed for the execution, and alike if calls have several."""
        if not self.execution.packed:
            return self.padded
        chunks = self.execution.chunks(self.global_batch_size)
        # On CPUs steps in one pass were 2 to 6 % slower, since buckets hold texts of both sides.
        siamese = self.model.objective.model.is_siamese(self.model.abstract_params["dual_encoder"])
        joint = siamese and self.platform != "cpu"
        shards, most = self.execution.shards, 1 if self.settings.train.steps_per_call > 1 else MAX_PROFILES
        return self.padded.without_padding(self.steps, shards=shards, chunks=chunks, joint=joint, most=most)

    @property
    def largest_batch(self) -> Batch:
        """Shapes of the largest planned batch; without a plan, those of a batch of texts of maximum length."""
        return (self.stream.profiles() or [self.stream.widest()])[-1]

    @property
    def rows_at_once(self) -> int:
        """Number of pairs that a device encodes at a time."""
        rows = self.global_batch_size // self.execution.shards
        return -(-rows // self.execution.chunks(self.global_batch_size))

    @functools.cached_property
    def objective(self) -> Objective:
        """Objective with the chosen rematerialisation, for the execution and the length of an epoch."""
        steps_per_epoch = len(self.padded.pairs) / self.global_batch_size
        towers = with_remat(self.model.dual_encoder, self.choice.remat)
        objective = self.model.method.objective(towers, self.settings.objective)
        return objective.for_run(self.execution, steps_per_epoch)

    @functools.cached_property
    def optimizer(self) -> optax.GradientTransformation:
        """Optimizer with its schedule."""
        trained, _ = split_frozen(self.model.abstract_params, self.model.frozen)
        return make_optimizer(self.settings.optimizer.fitted(self.steps), self.steps, trained, self.joined)

    @property
    def joined(self) -> bool:
        """True if gradients are joined for their norm: on GPUs, which launch kernels slowly, unless they are split."""
        return self.platform == "gpu" and self.mesh.shape["fsdp"] == self.mesh.shape["tensor"] == 1

    def create(self, params: dict) -> TrainState:
        """Creates the initial state from parameters."""
        return TrainState.create(params, self.optimizer, self.model.frozen)

    @functools.cached_property
    def state(self) -> TrainState:
        """Shapes and shardings of the state."""
        shapes = jax.eval_shape(self.create, self.model.abstract_params)
        return abstract(shapes, state_shardings(shapes, self.mesh))

    @property
    def shardings(self) -> TrainState:
        """Sharding of each leaf of the state."""
        return jax.tree.map(lambda leaf: leaf.sharding, self.state)

    @functools.cached_property
    def train_step(self) -> jax.stages.Wrapped:
        """Step that can be lowered, of `make_train_step`."""
        settings = self.settings
        return make_train_step(
            self.objective,
            self.optimizer,
            make_schedule(settings.optimizer.fitted(self.steps), self.steps),
            seed=settings.seed,
            shardings=self.shardings,
            frozen=self.model.frozen,
            joined=self.joined,
        )

    @functools.cached_property
    def room(self) -> int:
        """Bytes available to activations on one device."""
        return self.memory.activations(bytes_held(self.state), self.platform)

    @functools.cached_property
    def activations(self) -> int:
        """Estimated bytes of activations and gradients on one device, from the shapes of the largest batch.

        The temporaries of the compiled step are within 25 % of this estimate.
        """
        rows, (trained, frozen) = self.rows_at_once, split_frozen(self.model.abstract_params, self.model.frozen)
        keys = jax.eval_shape(lambda: example_keys(jax.random.key(0, impl="threefry2x32"), jnp.int32(0), rows))
        chunk = jax.tree.map(lambda x: jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype), self.largest_batch)
        # On one device: what a kernel keeps would count once for every device of the mesh.
        with jax.sharding.use_abstract_mesh(
            self.mesh.abstract_mesh.update(axis_sizes=(1,) * len(self.mesh.axis_names))
        ):
            embed, rest = self.objective.embed, (frozen, (chunk, keys))
            needed = bytes_kept(lambda trained, rest: embed(merge_frozen(trained, rest[0]), rest[1]), trained, rest)
        # Other devices hold a part of the layers' matrices, which are gathered a layer at a time.
        gathered = self.execution.by_layer or not self.execution.packed
        return needed - self._layer_bytes[0] if gathered else needed

    @functools.cached_property
    def _layer_bytes(self) -> tuple[int, int]:
        """Bytes of the layers' matrices that other devices hold, and of those of this device."""
        params = parameter_paths(self.model.abstract_params)
        matrices = {path: leaf for path, leaf in params.items() if rule_of(path).by_layer}
        held = bytes_held(abstract(matrices, state_shardings(matrices, self.mesh)))
        return sum(leaf.size * leaf.dtype.itemsize for leaf in matrices.values()) - held, held

    @property
    def expected_peak(self) -> int:
        """Estimated peak memory of a step in bytes, for this process on a CPU and for one device otherwise."""
        return self.memory.peak(bytes_held(self.state) + self.activations)

    @property
    def is_asked(self) -> bool:
        """True if the compiler is asked for the memory of several choices. On CPUs the estimate is good enough."""
        return len(self.choices) > 1 and self.platform != "cpu"

    def calls_of(self, batches: Sequence[Batch]) -> list[Batch | Stacked]:
        """Returns the shapes of the calls with batches of these shapes, one or several stacked; the largest is last."""
        steps = self.settings.train.steps_per_call
        return [*batches, *(Stacked.shapes(batch, steps) for batch in batches if steps > 1)]

    def calls_to_ask(self) -> list[Batch | Stacked]:
        """Returns the calls to compile a step for before its memory is known: the largest if several may follow."""
        return self.calls_of([self.largest_batch])[-1:] if self.is_asked else self.calls_of(self.stream.profiles())

    def with_choice(self, choice: StepMemory) -> "TrainPlan":
        """Returns the plan of the same run for another choice of `options_by_cost`."""
        return self if choice == self.choice else dataclasses.replace(self, choice=choice)

    def fitted(self, compiled: Callable[["TrainPlan"], int] | None = None) -> "TrainPlan":
        """Returns the plan for the first choice whose step fits into memory: see `first_that_fits`.

        On CPUs, where the estimate stands unless the compiled step needs more, choices before this plan's are left out.

        Args:
          compiled: function that compiles the step of a plan and returns its bytes on one device; None to trust the
            estimate from shapes.
        """
        plans = functools.cache(self.with_choice)

        def expected(choice: StepMemory) -> int:
            return plans(choice).activations

        def needed(choice: StepMemory) -> int:
            return compiled(plans(choice)) - bytes_held(self.state) if compiled else expected(choice)

        first = self.choices.index(self.choice) if self.platform == "cpu" else 0
        return plans(first_that_fits(self.choices[first:], self.room, expected, needed))


def plan_training(model: Model, mesh: Mesh, pairs: Pairs, memory: DeviceMemory, platform: str = "") -> TrainPlan:
    """Plans the batches of a run, their packing, and the execution of its steps as far as shapes tell.

    Args:
      model: model to train.
      mesh: device mesh.
      pairs: training pairs.
      memory: memory of each device.
      platform: platform of the run's devices; empty for that of the mesh.

    Returns:
      The plan for the first choice that should fit.
    """
    settings = model.settings
    size = settings.train.global_batch_size
    data = settings.data
    collator = model.method.collator(pairs, settings.objective, data.hard_negatives)
    stream = BatchStream(pairs, collator, rows=local_rows(mesh, size), **sampler_options(settings))
    platform = platform or sharding_hints.platform(mesh)
    tokens = max(1, sum(math.prod(side.ids.shape[1:]) for side in stream.typical().sides if isinstance(side, Tokens)))
    ordered = options_by_cost(settings, size // batch_shards(mesh), tokens, platform)
    plan = TrainPlan(settings, model, mesh, stream, memory, platform, ordered, ordered[0])
    return plan.fitted() if len(ordered) > 1 else plan


def loss_tile(setting: int, global_batch_size: int, arrays: int = 1) -> int | None:
    """Returns the rows of scores in memory at a time for a value of `objective.loss_tile`; None for all of them.

    Args:
      setting: the value; -1 to choose.
      global_batch_size: pairs of a batch, B.
      arrays: number of arrays of scores [B, B].
    """
    if setting == -1:
        scores = arrays * global_batch_size
        if scores * global_batch_size <= DENSE_UP_TO**2:
            return None
        setting = 128 * min(max(TILE_SCORES // (128 * scores), 1), 4)
    return setting or None
