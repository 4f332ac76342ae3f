"""Two towers and where each finds its parameters."""

import dataclasses
from typing import cast

import jax
import jax.numpy as jnp

from endx_jax.batch import Tokens
from endx_jax.models.tower import Tower

Array = jax.Array

SIDES = ("question", "answer")


@dataclasses.dataclass(frozen=True)
class DualEncoder:
    """A question tower and an answer tower, as pure functions of their parameters.

    Parameters are a tree with the groups that both towers use under `shared`. This is the Siamese dual encoder (SDE of
    Dong et al. 2022): every group is shared, so that the two towers are one function.

    Attributes:
      tower: the architecture of both towers.
    """

    tower: Tower

    def init(self, key: Array) -> dict:
        """Draws new parameters; also good under `jax.eval_shape`."""
        tokens = Tokens(ids=jnp.zeros((1, 2), jnp.int32), mask=jnp.ones((1, 2), bool))
        return {"shared": self.tower.init(key, tokens)["params"]}

    def encode(self, params: dict, side: str, tokens: Tokens, dropout_keys: Array | None = None) -> Array:
        """Embeds tokens [B, L] of one side, `question` or `answer`: float32 [B, E]."""
        return cast(Array, self.tower.apply({"params": params["shared"] | params.get(side, {})}, tokens, dropout_keys))
