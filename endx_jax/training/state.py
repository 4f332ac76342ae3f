"""State that a training run carries from step to step."""

import flax.struct
import jax
import jax.numpy as jnp
import optax

from endx_jax.training.partition import split_frozen


@flax.struct.dataclass
class TrainState:
    """Training state, which with the config determines every later step; it has no random key and no data position.

    Attributes:
      step: int32 scalar, updates made so far.
      params: the objective's parameters, float32.
      opt_state: of the optimizer, for the trained parameters.
    """

    step: jax.Array
    params: dict
    opt_state: optax.OptState

    @classmethod
    def create(cls, params, optimizer: optax.GradientTransformation, frozen: tuple[str, ...] = ()) -> "TrainState":
        """Creates the state before the first step; `frozen` as in `split_frozen`."""
        trained, _ = split_frozen(params, frozen)
        return cls(step=jnp.zeros((), jnp.int32), params=params, opt_state=optimizer.init(trained))
