"""Rows of one device of a batch that is split by `jax.shard_map`."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from endx_jax.numerics import at_least_float32

Array = jax.Array
AxisName = str | tuple[str, ...] | None


@dataclasses.dataclass(frozen=True)
class Shard:
    """Pairs of this device, with collectives over the whole batch.

    Attributes:
      where: bool [R], the pairs that count.
      axis_name: the mesh axes over which the batch is split; None when this is all of it.
    """

    where: Array
    axis_name: AxisName

    @classmethod
    def of(cls, size: int, where: Array | None, axis_name: AxisName) -> "Shard":
        """Returns the shard of `size` pairs; all of them count if `where` is None."""
        return cls(jnp.ones(size, dtype=bool) if where is None else where, axis_name)

    def counting(self, x: Array) -> Array:
        """Returns embeddings [R, E] in float32 at least, with zeros for pairs that do not count."""
        return jnp.where(self.where[:, None], at_least_float32(x), 0)

    def psum(self, x: Array) -> Array:
        """Sums over devices."""
        return x if self.axis_name is None else jax.lax.psum(x, self.axis_name)

    def index(self) -> Array:
        """Returns the indices of these pairs in the whole batch, int32 [R]."""
        first = 0 if self.axis_name is None else jax.lax.axis_index(self.axis_name) * len(self.where)
        return first + jnp.arange(len(self.where))

    def all_gather(self, tree: Any) -> Any:
        """Gathers this device's rows [R, ...] with those of all devices: [B, ...]."""
        if self.axis_name is None:
            return tree
        return jax.tree.map(lambda x: jax.lax.all_gather(x, self.axis_name, tiled=True), tree)
