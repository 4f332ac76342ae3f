"""Rows and columns of a matrix of scores, cut into tiles that are processed one after another."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Array = jax.Array
Tree = Any


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


def cut(operands: Tree, marks: Tree, tile: int) -> Tiles:
    """Cuts rows into as few tiles of equal size as possible; the last is padded with copies of its last row."""
    rows = length(operands)
    count = -(-rows // tile)
    size = -(-rows // max(count, 1))
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
