"""Training step of every method."""

import concurrent.futures
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from endx_jax.batch import Batch
from endx_jax.parallel.sharding import batch_sharding
from endx_jax.training.state import TrainState, merge, split_frozen

Objective = Callable[[dict, Batch, jax.Array, jax.Array], tuple[jax.Array, dict[str, jax.Array]]]
Step = Callable[[TrainState, Batch], tuple[TrainState, dict[str, jax.Array]]]


def make_train_step(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    schedule: Callable[[jax.Array], jax.Array],
    *,
    seed: int,
    shardings: TrainState,
    frozen: Sequence[str] = (),
) -> Step:
    """Makes the training step of an objective, compiled for each batch shape.

    Args:
      objective: (params, batch, rng, step) to (loss, metrics).
      optimizer: from gradients to updates.
      schedule: the learning rate by step, for the log.
      seed: of dropout.
      shardings: of the state, before and after a step.
      frozen: patterns of frozen parameters: see `split_frozen`.

    Returns:
      A jitted (state, batch) -> (state, metrics). The old state's buffers are reused. Metrics are scalars: `loss`, the
      objective's, `gradient_norm` (before clipping), `learning_rate` and `tokens` (real tokens in the batch).
    """

    def train_step(state: TrainState, batch: Batch):
        # Only this generator numbers its bits so that padding and splitting leave masks alone: see models/dropout.py.
        rng = jax.random.key(seed, impl="threefry2x32")
        trained, fixed = split_frozen(state.params, frozen)

        def compute(trained):
            return objective(merge(trained, fixed), batch, rng, state.step)

        (loss, metrics), gradients = jax.value_and_grad(compute, has_aux=True)(trained)
        updates, opt_state = optimizer.update(gradients, state.opt_state, trained)
        metrics = {
            "loss": loss,
            **metrics,
            "gradient_norm": optax.tree.norm(gradients),
            "learning_rate": schedule(state.step),
            "tokens": sum((jnp.sum(side.lengths) for side in batch.sides), start=jnp.int32(0)),
        }
        params = merge(optax.apply_updates(trained, updates), fixed)
        return TrainState(step=state.step + 1, params=params, opt_state=opt_state), metrics

    return jax.jit(train_step, donate_argnums=0, out_shardings=(shardings, None))


@dataclasses.dataclass(frozen=True)
class CompiledStep:
    """Training step with programs compiled ahead.

    Attributes:
      programs: by the key `shape_of` of a batch.
      otherwise: step for batches of other shapes, which are compiled on demand.
    """

    programs: Mapping[Any, Callable]
    otherwise: Step

    def bytes(self) -> int:
        """Returns the bytes that the largest compiled program holds on one device; 0 without programs."""
        return max(map(program_bytes, self.programs.values()), default=0)

    def __call__(self, state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, jax.Array]]:
        """Runs the step."""
        return self.programs.get(shape_of(batch), self.otherwise)(state, batch)


def compile_ahead(
    train_step: Step, state: TrainState, batches: Sequence[Batch], mesh: jax.sharding.Mesh
) -> CompiledStep:
    """Compiles a step for batches of known shapes, in parallel, before the first batch exists.

    Args:
      train_step: from `make_train_step`.
      state: arrays, or shapes with shardings.
      batches: shapes of global batches.
      mesh: over which batches are split.
    """

    def compile_one(batch: Batch):
        return train_step.lower(state, abstract_batch(batch, mesh)).compile()  # type: ignore[attr-defined]  # it is jitted

    with concurrent.futures.ThreadPoolExecutor() as pool:
        programs = dict(zip(map(shape_of, batches), pool.map(compile_one, batches), strict=True))
    return CompiledStep(programs, train_step)


def program_bytes(program) -> int:
    """Returns the bytes that a compiled program holds on one device: arguments, temporaries and results."""
    memory = program.memory_analysis()
    results = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return memory.argument_size_in_bytes + memory.temp_size_in_bytes + results


def abstract_batch(batch: Batch, mesh: jax.sharding.Mesh) -> Batch:
    """Adds shardings to the shapes of a global batch."""
    rows = batch_sharding(mesh)
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=rows), batch)


def shape_of(batch: Batch):
    """Returns the key of a compiled program; packings are part of the tree structure."""
    leaves, structure = jax.tree.flatten(batch)
    return structure, tuple(leaf.shape for leaf in leaves)
