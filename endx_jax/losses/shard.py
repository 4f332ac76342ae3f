"""Batches that `jax.shard_map` splits over devices: each device has some rows, and statistics are of all rows."""

from typing import Any

import jax
import jax.numpy as jnp

from endx_jax.numerics import at_least_float32

Array = jax.Array
# Mesh axes over which the rows of a batch are split; None if one device has them all.
AxisName = str | tuple[str, ...] | None


def psum(x: Array, axis_name: AxisName) -> Array:
    """Sums over devices."""
    return x if axis_name is None else jax.lax.psum(x, axis_name)


def all_gather(tree: Any, axis_name: AxisName) -> Any:
    """Gathers the rows [R, ...] of all devices as [B, ...], for each array of a tree.

    Examples:
      >>> print(losses.all_gather(jnp.arange(2), axis_name=None))  # one device has all rows
      [0 1]
    """
    if axis_name is None:
        return tree
    return jax.tree.map(lambda x: jax.lax.all_gather(x, axis_name, tiled=True), tree)


def batch_mean(values: Array, where: Array, axis_name: AxisName = None) -> Array:
    """Returns the mean of the values for which `where` is true, over all devices; zero if there are none.

    Examples:
      >>> print(losses.batch_mean(jnp.array([1.0, 2.0, 9.0]), jnp.array([True, True, False])))
      1.5
    """
    values = at_least_float32(values)
    count = psum(jnp.sum(where, dtype=values.dtype), axis_name)
    return psum(jnp.sum(jnp.where(where, values, 0)), axis_name) / jnp.maximum(count, 1)


def included_rows(x: Array, where: Array) -> Array:
    """Returns embeddings [R, ..., E] at least in float32, with zeros where `where` [R, ...] is false, even if NaN."""
    return jnp.where(where.reshape(*where.shape, *[1] * (x.ndim - where.ndim)), at_least_float32(x), 0)
