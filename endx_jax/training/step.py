"""The one train step."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import optax

from endx_jax.batch import Batch
from endx_jax.training.partition import merge, split_frozen
from endx_jax.training.state import TrainState

Objective = Callable[[dict, Batch, jax.Array, jax.Array], tuple[jax.Array, dict[str, jax.Array]]]


def make_train_step(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    schedule: Callable[[jax.Array], jax.Array],
    *,
    seed: int,
    shardings: TrainState,
    frozen: Sequence[str] = (),
) -> Callable[[TrainState, Batch], tuple[TrainState, dict[str, jax.Array]]]:
    """Compiles the update of any objective on a global batch.

    Args:
      objective: (params, batch, rng, step) to (loss, metrics).
      optimizer: turns gradients into updates.
      schedule: the learning rate by step, for the log.
      seed: of dropout.
      shardings: where each leaf of the state lives; the new state stays there.
      frozen: patterns of the parameters that are not differentiated: see `split_frozen`.

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
        sides = (batch.question, batch.answer, batch.hard_negatives)
        metrics = {
            "loss": loss,
            **metrics,
            "gradient_norm": optax.tree.norm(gradients),
            "learning_rate": schedule(state.step),
            "tokens": sum(jnp.sum(side.mask) for side in sides if side is not None),
        }
        params = merge(optax.apply_updates(trained, updates), fixed)
        return TrainState(step=state.step + 1, params=params, opt_state=opt_state), metrics

    return jax.jit(train_step, donate_argnums=0, out_shardings=(shardings, None))
