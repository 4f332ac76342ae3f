"""Partition into trained and frozen parameters, which get no gradient, optimizer state or part in the clipping norm."""

import re
from collections.abc import Sequence

import jax

from endx_jax.errors import EndxError


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
        raise EndxError(f"optimizer.frozen names {sorted(unused)[0]!r}, which is found in no parameter's path")
    if all(jax.tree.leaves(frozen)):
        raise EndxError("every parameter is frozen: leave some to train out of optimizer.frozen")
    trained = jax.tree.map(lambda leaf, still: None if still else leaf, params, frozen)
    return trained, jax.tree.map(lambda leaf, still: leaf if still else None, params, frozen)


def merge(trained, frozen):
    """Merges trained and frozen parameters; the inverse of `split_frozen`."""
    return jax.tree.map(lambda a, b: b if a is None else a, trained, frozen, is_leaf=lambda leaf: leaf is None)
