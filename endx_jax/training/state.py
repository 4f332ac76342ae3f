"""State that a training run carries from step to step, and which of its parameters are trained.

Frozen parameters have no gradient, no optimizer state and no part in the clipping norm.
"""

import re
from collections.abc import Sequence

import flax.struct
import flax.traverse_util
import jax
import jax.numpy as jnp
import optax

from endx_jax.errors import EndxError


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


def split_frozen(params, patterns: Sequence[str]):
    """Splits a tree by the paths of its leaves.

    Args:
      params: a tree of arrays or shapes.
      patterns: regular expressions; a leaf is frozen if one of them is found in its path.

    Returns:
      (trained, frozen): two trees like `params`, with None, an empty tree in JAX, in place of the other's leaves.

    Raises:
      EndxError: a pattern is found in no path, or all parameters are frozen.
    """
    unused = set(patterns)

    def is_frozen(path, _) -> bool:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        found = [pattern for pattern in patterns if re.search(pattern, name)]
        unused.difference_update(found)
        return bool(found)

    frozen = jax.tree_util.tree_map_with_path(is_frozen, params)
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
