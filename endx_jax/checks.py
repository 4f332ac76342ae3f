"""Checks of array arguments of public functions; each error is one sentence with names and shapes.

Shapes and dtypes are known while a function is traced, so the checks add nothing to a compiled program. Values are
checked where they are concrete; under `jax.jit` an argument's value is not known and passes.
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
      arrays: by name, the array and its shape, such as `[B, E]` or `integer [B, P]`: optionally a kind from `KINDS`,
        and a letter for each axis. A letter stands for the same size in all arrays. None passes as an array.

    Raises:
      EndxError: an argument is not an array, or has another shape or kind; the message names the argument, its shape,
        and the argument that it has to agree with.
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
            known = " and ".join(f"{x} = {sizes[x][0]} as in {sizes[x][1]}" for x in letters if x in sizes)
            agreeing = f", with {known}" if known else ""
            raise EndxError(f"{name} has shape {array.shape}; it must be {documented}{agreeing}")
        if kind and not jnp.issubdtype(array.dtype, KINDS[kind.strip()]):
            raise EndxError(f"{name} has dtype {array.dtype}; it must be {documented}")
        for letter, size in zip(letters, array.shape, strict=True):
            sizes.setdefault(letter, (size, name))


def check_positive(name: str, value: object) -> None:
    """Raises EndxError unless a number or array is greater than zero everywhere; None and traced values pass."""
    if value is None or isinstance(value, jax.core.Tracer):
        return
    if not getattr(value, "is_fully_addressable", True):  # an array that other processes hold a part of
        return
    if not np.all(np.asarray(value) > 0):
        raise EndxError(f"{name} is {value}; it must be greater than 0")
