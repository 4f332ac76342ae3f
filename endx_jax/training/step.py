"""Training step and its state, shared by all methods.

Frozen parameters have no gradient, no optimizer state and no part in the clipping norm.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.struct
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import optax

from endx_jax.batch import Batch
from endx_jax.errors import EndxError
from endx_jax.parallel.sharding import map_paths
from endx_jax.settings import require
from endx_jax.training.optimizer import joined_norm


@flax.struct.dataclass
class TrainState:
    """Training state, which together with the config determines every later step.

    It holds no random key and no position in the data: both are functions of the seed and the step.

    Attributes:
      step: int32 scalar, number of updates made.
      params: parameters of the objective, float32.
      opt_state: optimizer state of the trained parameters.
    """

    step: jax.Array
    params: dict
    opt_state: optax.OptState

    @classmethod
    def create(cls, params, optimizer: optax.GradientTransformation, frozen: tuple[str, ...] = ()) -> "TrainState":
        """Creates the initial state; `frozen` holds the patterns of `split_frozen`."""
        trained, _ = split_frozen(params, frozen)
        return cls(step=jnp.zeros((), jnp.int32), params=params, opt_state=optimizer.init(trained))


@flax.struct.dataclass
class Stacked:
    """Batches of consecutive steps that one call of the training step takes.

    Attributes:
      batches: the batches, of equal shapes, as one with a leading axis of S steps: its leaves are [S, B, ...].
    """

    batches: Batch

    @property
    def steps(self) -> int:
        """Number of steps, S."""
        return len(jax.tree.leaves(self.batches)[0])

    @classmethod
    def of(cls, batches: Sequence[Batch]) -> "Stacked":
        """Stacks batches with NumPy leaves."""
        return cls(jax.tree.map(lambda *leaves: np.stack(leaves), *batches))

    @classmethod
    def shapes(cls, batch: Batch, steps: int) -> "Stacked":
        """Returns the shapes and dtypes of a stack of `steps` batches, given those of one batch."""
        return cls(jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((steps, *leaf.shape), leaf.dtype), batch))


def split_frozen(params, patterns: Sequence[str]):
    """Splits a tree into (trained, frozen), both with None, an empty tree in JAX, in place of the other's leaves.

    A leaf is frozen if one of the patterns is found in its path. Each pattern is found in a path, and a leaf is left.
    """
    unused = set(patterns)

    def is_frozen(path: str, _) -> bool:
        found = [pattern for pattern in patterns if re.search(pattern, path)]
        unused.difference_update(found)
        return bool(found)

    frozen = map_paths(is_frozen, params)
    if unused:
        raise EndxError(f"optimizer.frozen has the pattern {sorted(unused)[0]!r}, which matches no parameter's path")
    if all(jax.tree.leaves(frozen)):
        raise EndxError("optimizer.frozen matches every parameter: remove the patterns of parameters to train")
    trained = jax.tree.map(lambda leaf, still: None if still else leaf, params, frozen)
    return trained, jax.tree.map(lambda leaf, still: leaf if still else None, params, frozen)


def without(params: dict, patterns: Sequence[str]) -> dict:
    """Returns parameters without those in whose path one of the patterns is found, nor empty groups."""
    leaves = flax.traverse_util.flatten_dict(params, sep="/")
    kept = {path: leaf for path, leaf in leaves.items() if not any(re.search(pattern, path) for pattern in patterns)}
    return flax.traverse_util.unflatten_dict(kept, sep="/")


def merge_frozen(trained, frozen):
    """Merges trained and frozen parameters; the inverse of `split_frozen`."""
    return jax.tree.map(lambda a, b: b if a is None else a, trained, frozen, is_leaf=lambda leaf: leaf is None)


LossFunction = Callable[[dict, Batch, jax.Array, jax.Array], tuple[jax.Array, dict[str, jax.Array]]]
Step = Callable[[TrainState, Batch | Stacked], tuple[TrainState, dict[str, jax.Array]]]


def make_train_step(
    objective: LossFunction,
    optimizer: optax.GradientTransformation,
    schedule: Callable[[jax.Array], jax.Array],
    *,
    seed: int,
    shardings: TrainState,
    frozen: Sequence[str] = (),
    joined: bool = False,
) -> jax.stages.Wrapped:
    """Makes the jitted training step of an objective.

    Args:
      objective: function (params, batch, rng, step) -> (loss, metrics).
      optimizer: optax transformation for the trained parameters.
      schedule: function from step to learning rate, for the log only.
      seed: seed of dropout.
      shardings: sharding of each leaf of the state, before and after the step.
      frozen: patterns of parameters that are not trained: see `split_frozen`.
      joined: computes the gradient's norm by `optimizer.joined_norm`, as an optimizer with this argument does.

    Returns:
      A jitted function (state, batch) -> (state, metrics), which donates the old state. Metrics are scalars: `loss`,
      the metrics of the objective, `gradient_norm` (before clipping), `learning_rate` and `tokens` (number of tokens in
      the batch without padding). With `Stacked` batches it takes their S steps, and the metrics are [S].
    """

    def one_step(state: TrainState, batch: Batch):
        # Dropout needs this generator: its masks do not depend on padding or sharding (see models/dropout.py).
        rng = jax.random.key(seed, impl="threefry2x32")
        trained, fixed = split_frozen(state.params, frozen)

        def compute(trained):
            return _checked(objective(merge_frozen(trained, fixed), batch, rng, state.step))

        (loss, metrics), gradients = jax.value_and_grad(compute, has_aux=True)(trained)
        updates, opt_state = optimizer.update(gradients, state.opt_state, trained)
        metrics = {
            "loss": loss,
            **metrics,
            "gradient_norm": joined_norm(gradients) if joined else optax.tree.norm(gradients),
            "learning_rate": schedule(state.step),
            "tokens": sum((jnp.sum(side.lengths) for side in batch.sides), start=jnp.int32(0)),
        }
        params = merge_frozen(optax.apply_updates(trained, updates), fixed)
        return TrainState(step=state.step + 1, params=params, opt_state=opt_state), metrics

    def train_step(state: TrainState, batch: Batch | Stacked):
        return jax.lax.scan(one_step, state, batch.batches) if isinstance(batch, Stacked) else one_step(state, batch)

    return jax.jit(train_step, donate_argnums=0, out_shardings=(shardings, None))


def _checked(result: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Returns the result of an objective; raises EndxError unless it is a loss and metrics that are single numbers."""
    pair = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)
    require(pair, f"the objective of the method returns a {type(result).__name__}; it must be (loss, metrics by name)")
    for name, value in {"loss": result[0], **result[1]}.items():
        said = f"{name!r} of the method's objective has shape {jnp.shape(value)}; it must be one number, such as a mean"
        require(jnp.ndim(value) == 0, said)
    return result
