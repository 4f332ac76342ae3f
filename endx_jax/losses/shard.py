"""One device's rows of a batch that `jax.shard_map` splits, and division of rows into tiles."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from endx_jax.numerics import at_least_float32

Array = jax.Array
Tree = Any
AxisName = str | tuple[str, ...] | None


@dataclasses.dataclass(frozen=True)
class Shard:
    """One device's pairs, and collectives over the whole batch.

    Attributes:
      where: bool [R], pairs to include.
      axis_name: mesh axes over which the batch is split; None if it is not split.
    """

    where: Array
    axis_name: AxisName

    @classmethod
    def of(cls, size: int, where: Array | None, axis_name: AxisName) -> "Shard":
        """Returns the shard of `size` pairs; `where=None` includes all of them."""
        return cls(jnp.ones(size, dtype=bool) if where is None else where, axis_name)

    def masked_rows(self, x: Array) -> Array:
        """Returns embeddings [R, ..., E] at least in float32, with zeros for excluded pairs, even if NaN."""
        return jnp.where(self.where.reshape(-1, *[1] * (x.ndim - 1)), at_least_float32(x), 0)

    def psum(self, x: Array) -> Array:
        """Sums over devices."""
        return x if self.axis_name is None else jax.lax.psum(x, self.axis_name)

    def index(self) -> Array:
        """Returns the indices of these pairs in the whole batch, int32 [R]."""
        first = 0 if self.axis_name is None else jax.lax.axis_index(self.axis_name) * len(self.where)
        return first + jnp.arange(len(self.where))

    def all_gather(self, tree: Any) -> Any:
        """Gathers the rows [R, ...] of all devices as [B, ...]."""
        if self.axis_name is None:
            return tree
        return jax.tree.map(lambda x: jax.lax.all_gather(x, self.axis_name, tiled=True), tree)


class Tiles(NamedTuple):
    """Rows or columns cut into tiles, with leading axes [tiles, size of a tile].

    Attributes:
      operands: float arrays.
      marks: integer or bool arrays.
      real: bool, false for the padding of the last tile.
    """

    operands: Tree
    marks: Tree
    real: Array


def cut_rows(operands: Tree, marks: Tree, tile: int) -> Tiles:
    """Cuts rows into as few tiles of equal size as possible, at least one; the last is padded with its last row."""
    rows = length(operands)
    count = max(1, -(-rows // tile))
    size = -(-rows // count)
    missing = count * size - rows
    real = jnp.arange(count * size) < rows

    def cut_one(x):
        # Copies, not zeros: at zeros, scores need not be differentiable.
        x = jnp.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1), mode="edge") if missing else x
        return x.reshape(count, size, *x.shape[1:])

    return Tiles(jax.tree.map(cut_one, operands), jax.tree.map(cut_one, marks), real.reshape(count, size))


def joined(tiles: Tree, rows: int) -> Tree:
    """Joins tiles [tiles, size, ...] to `rows` rows [rows, ...]."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:rows], tiles)


def length(tree: Tree) -> int:
    """Returns the size of the leading axis of the arrays of a tree."""
    return jax.tree.leaves(tree)[0].shape[0]
