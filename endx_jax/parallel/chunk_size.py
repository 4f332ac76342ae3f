"""How many rows of a batch a device can encode at a time: from shapes alone."""

import math
from collections.abc import Callable

import jax

from endx_jax.parallel.execution import Tree, count_rows


def auto_chunk(
    function: Callable[[Tree, Tree], Tree], params: Tree, rows: Tree, *, shards: int = 1, budget: int | None = None
) -> int:
    """The `tower_chunk` for a function whose activations may not fit: 0 where they do, else a power of two.

    Nothing is compiled or computed. What `tensor` splits counts whole.

    Args:
      function: what `Execution.map_rows` will be given.
      params: arrays or shapes of what is trained.
      rows: arrays or shapes of the global batch's rows.
      shards: devices that split the batch.
      budget: bytes that the activations of one device may take; None: see `activation_budget`.

    Returns:
      0, or the largest power of two of rows that fits, at least 1.
    """
    budget = activation_budget() if budget is None else budget
    kept = bytes_kept_per_row(function, params, rows)
    if kept * (count_rows(rows) // shards) <= budget:
        return 0
    return 1 << (max(1, budget // kept).bit_length() - 1)


def activation_budget() -> int:
    """Bytes of activations that a device may hold: a quarter of its memory, or 4 GiB where it does not tell."""
    # Of one device: all processes must come to the same program, so nothing that differs between them may count.
    stats = jax.local_devices()[0].memory_stats() or {}
    return stats.get("bytes_limit", 16 * 2**30) // 4


def bytes_kept_per_row(function: Callable[[Tree, Tree], Tree], params: Tree, rows: Tree) -> int:
    """Bytes that one row's forward pass leaves for the backward pass, beside what all rows share, such as `params`.

    Args:
      function: row-wise, (params, rows) to outputs.
      params: arrays or shapes.
      rows: arrays or shapes with one leading axis.
    """

    def kept(count: int) -> int:
        some = jax.tree.map(lambda row: jax.ShapeDtypeStruct((count, *row.shape[1:]), row.dtype), rows)
        pull = jax.eval_shape(lambda p, r: jax.vjp(lambda p: function(p, r), p)[1], params, some)
        return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(pull))

    return kept(2) - kept(1)
