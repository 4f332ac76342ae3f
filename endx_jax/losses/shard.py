"""One device's rows of a batch that `jax.shard_map` has split."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from endx_jax.numerics import at_least_float32

Array = jax.Array
AxisName = str | tuple[str, ...] | None


@dataclasses.dataclass(frozen=True)
class Shard:
    """The pairs of this device, and the way from them to those of the whole batch.

    Attributes:
      where: bool [R], the pairs that count.
      axis_name: the mesh axes over which the batch is split; None when this is all of it.
    """

    where: Array
    axis_name: AxisName

    @classmethod
    def of(cls, size: int, where: Array | None, axis_name: AxisName) -> "Shard":
        """The shard of `size` pairs, all of which count where `where` is None."""
        return cls(jnp.ones(size, dtype=bool) if where is None else where, axis_name)

    def counting(self, x: Array) -> Array:
        """Embeddings [R, E] in float32 at least, zero where the pair does not count, whatever stands there."""
        return jnp.where(self.where[:, None], at_least_float32(x), 0)

    def total(self, x: Array) -> Array:
        """Sums over devices."""
        return x if self.axis_name is None else jax.lax.psum(x, self.axis_name)

    def index(self) -> Array:
        """Int32 [R], where these pairs stand in the whole batch."""
        first = 0 if self.axis_name is None else jax.lax.axis_index(self.axis_name) * len(self.where)
        return first + jnp.arange(len(self.where))

    def everyone(self, tree: Any) -> Any:
        """From this device's rows [R, ...] to those of all devices [B, ...]."""
        if self.axis_name is None:
            return tree
        return jax.tree.map(lambda x: jax.lax.all_gather(x, self.axis_name, tiled=True), tree)
