"""Checks of the array arguments of public functions.

Shapes and dtypes are checked while a function is traced, so that compiled programs contain no checks. Values are only
checked outside `jax.jit`.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from endx_jax.errors import EndxError

KINDS = {"integer": np.integer, "bool": np.bool_}


def check_arrays(arrays: Mapping[str, tuple[object, str]]) -> None:
    """Checks arrays against their documented shapes.

    Args:
      arrays: array and documented shape of each argument. A shape is `[B, E]` or `integer [B, P]`: an optional kind of
        `KINDS`, and a letter for each axis. Axes with the same letter must have the same size in all arrays. None is
        accepted instead of an array.

    Raises:
      EndxError: an argument is not an array, or its shape or dtype is wrong.
    """
    sizes: dict[str, tuple[int, str]] = {}
    for name, (array, documented) in arrays.items():
        if array is None:
            continue
        if not isinstance(array, np.ndarray | jax.Array):
            kind = type(array).__name__
            raise EndxError(f"{name} is of type {kind}; it must be a NumPy or JAX array of shape {documented}")
        kind, _, axes = documented.rstrip("]").rpartition("[")
        letters = axes.split(", ")
        if len(letters) != array.ndim or any(
            sizes[letter][0] != size for letter, size in zip(letters, array.shape, strict=True) if letter in sizes
        ):
            others = " and ".join(f"{x} = {sizes[x][0]} as in {sizes[x][1]}" for x in letters if x in sizes)
            agreeing = f", with {others}" if others else ""
            raise EndxError(f"{name} has shape {array.shape}; it must be {documented}{agreeing}")
        if kind and not jnp.issubdtype(array.dtype, KINDS[kind.strip()]):
            raise EndxError(f"{name} has dtype {array.dtype}; it must be {documented}")
        for letter, size in zip(letters, array.shape, strict=True):
            sizes.setdefault(letter, (size, name))


def check_positive(name: str, value: object) -> None:
    """Raises EndxError unless all entries of a number or array are positive; accepts None and traced values."""
    if value is None or isinstance(value, jax.core.Tracer):
        return
    if not getattr(value, "is_fully_addressable", True):  # parts of the array are on other processes
        return
    if not np.all(np.asarray(value) > 0):
        raise EndxError(f"{name} is {value}; it must be greater than 0")
