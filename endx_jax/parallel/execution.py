"""Division of a step's work over devices and chunks, which does not affect results.

Chunked towers are GradCache (Gao et al. 2021) inside the compiled step: a loop over chunks of rows, each encoded again
in the backward pass, so that only one chunk's activations are in memory at a time, beside the embeddings of all rows.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jax.typing import DTypeLike

from endx_jax.parallel.gathering import gathered_by_layer
from endx_jax.parallel.sharding import BATCH_AXES, batch_shards

WHOLE, ROWS = PartitionSpec(), PartitionSpec(BATCH_AXES)

# What traces and programs call that which is done row by row.
TOWERS = "towers"

# A tree of arrays, or of None where it has nothing.
Tree = Any


@dataclasses.dataclass(frozen=True)
class Execution:
    """Division of a step's work.

    Attributes:
      mesh: the devices; None: one device, or a placement chosen by the compiler.
      tower_chunk: maximum rows that a device encodes at a time; 0: all its rows at once.
      loss_tile: side of the score tiles that losses are streamed over; None: dense losses.
      packed: true if the texts of a batch are packed, separately for each chunk of each device.
      dtype: of the towers' layers, in which `fsdp` gathers their matrices.
    """

    mesh: Mesh | None = None
    tower_chunk: int = 0
    loss_tile: int | None = None
    packed: bool = False
    dtype: DTypeLike = jnp.float32

    def chunks(self, rows: int) -> int:
        """Returns the number of chunks in which a device encodes its part of a global batch of that many rows."""
        own = rows // self.shards
        return math.ceil(own / self.tower_chunk) if 0 < self.tower_chunk < own else 1

    def map_rows(
        self,
        function: Callable[[Tree, Tree], Tree],
        params: Tree,
        rows: Tree,
        cost: Callable[[Tree], jax.Array] | None = None,
    ) -> Tree:
        """Calls a function of rows in chunks.

        Each device's rows are divided into chunks. The gradient of `params` is summed over the chunks first, and
        reduced once over the devices that split the batch, after the loop. Parameters that `fsdp` splits are whole
        during the loop; `tensor` splits them inside too.

        Args:
          function: (params, rows) to outputs, each row of which depends only on the same row of `rows`.
          params: differentiated inputs; `function` must not close over any others.
          rows: arrays, typed keys included, of one leading axis: the rows of the global batch.
          cost: rows to a number each, such as their tokens. Rows are distributed to the chunks in this order, in turn,
            so that all chunks cost about the same; None: chunks are consecutive rows.

        Returns:
          The outputs, of the same leading axis.
        """
        function = jax.named_scope(TOWERS)(function)
        chunks = self.chunks(count_rows(rows))
        run = function if chunks == 1 else functools.partial(_in_chunks, function, chunks, cost)
        if chunks == 1 and not self.packed:
            return self.on_all(function, params, rows)
        if self.shards == 1:
            with self.on_mesh():
                return run(params, rows)
        return self._on_each_shard(run, (WHOLE, ROWS), ROWS)(params, rows)

    def sum_rows(
        self,
        function: Callable[[Tree, Tree, jax.Array], tuple[jax.Array, Tree]],
        params: Tree,
        rows: Tree,
        cost: Callable[[Tree], jax.Array] | None = None,
    ) -> tuple[jax.Array, Tree]:
        """Sums a function over rows in chunks, computing each chunk's gradient beside its value.

        For expensive functions: since the result is a sum, no activation outlives its chunk, as in `map_rows`, and
        nothing is computed twice.

        Args:
          function: (params, rows, counts) to a scalar and a tree of scalars for the log, each a sum over the rows that
            count, bool [R], of terms that depend on one row. It must not close over differentiated values.
          params: differentiated, as are the arrays of floats among `rows`.
          rows: as for `map_rows`.
          cost: as for `map_rows`.

        Returns:
          The sums over all rows of the scalar, which has a gradient, and of the others, which have none.
        """
        function = jax.named_scope(TOWERS)(function)
        leaves, structure = jax.tree.flatten(rows)
        moving = [x if jnp.issubdtype(x.dtype, jnp.inexact) else None for x in leaves]
        fixed = [x if y is None else None for x, y in zip(leaves, moving, strict=True)]

        def merged(params, moving, fixed, counts):
            both = [x if y is None else y for x, y in zip(fixed, moving, strict=True)]
            return function(params, jax.tree.unflatten(structure, both), counts)

        return _summed(self, merged, self.chunks(count_rows(rows)), cost and cost(rows), params, moving, fixed)

    def reduce_rows(self, function: Callable[[Tree, Tree, Any], Tree], params: Tree, rows: Tree) -> Tree:
        """Calls a function of all rows, such as a loss, on each device with its rows.

        Args:
          function: (params, rows, axis_name) to scalars of the global batch. If `axis_name` is not None, the rows are
            those of one device, and collectives over these mesh axes reach the others. It must not close over
            differentiated values.
          params: whole on each device, such as a temperature.
          rows: arrays of one leading axis: the rows of the global batch.

        Returns:
          The scalars.
        """
        if self.loss_tile is None or self.shards == 1:
            return function(params, rows, None)
        on_shard = self._on_each_shard(lambda whole, own: function(whole, own, BATCH_AXES), (WHOLE, ROWS), WHOLE)
        return on_shard(params, rows)

    @property
    def shards(self) -> int:
        """Number of parts that a batch is split into over devices."""
        return 1 if self.mesh is None else batch_shards(self.mesh)

    def on_all(self, function: Callable[[Tree, Tree], Tree], params: Tree, rows: Tree) -> Tree:
        """Calls a function of rows, as in `map_rows`, with all rows at once; the compiler splits them over devices.

        Where parameters are split, the compiler gets hints: see `parallel.gathering` and `models.sharding_hints`.
        """
        if self.mesh is not None:
            params = gathered_by_layer(params, self.mesh, self.dtype)
        with self.on_mesh():
            return function(params, rows)

    def on_mesh(self) -> contextlib.AbstractContextManager:
        """Returns a context for tracing for the mesh: modules ask `models.sharding_hints` for its platform."""
        if self.mesh is None:
            return contextlib.nullcontext()
        return jax.sharding.use_abstract_mesh(self.mesh.abstract_mesh)

    def _on_each_shard(self, function: Callable, in_specs, out_specs) -> Callable:
        """Maps `function` over the parts of the batch; the mesh's other axes are left to the compiler.

        check_vma is off. With it, replicated values become varying where they meet rows, inside the loop, and so does
        the transpose, the reduction of their gradient (tests/parallel/test_execution.py counts them); and loops in
        `function` whose carry begins with a constant would be refused.
        """
        return jax.shard_map(
            function,
            mesh=self.mesh,
            in_specs=in_specs,
            out_specs=out_specs,
            axis_names=set(BATCH_AXES),
            check_vma=False,
        )


def count_rows(rows: Tree) -> int:
    """Returns the length of the leading axis of the arrays of a tree."""
    return jax.tree.leaves(rows)[0].shape[0]


def _in_chunks(
    function: Callable[[Tree, Tree], Tree],
    chunks: int,
    cost: Callable[[Tree], jax.Array] | None,
    params: Tree,
    rows: Tree,
) -> Tree:
    """Calls `function` in a loop over chunks of equal size, without keeping activations."""
    taken, _, place = _deal(count_rows(rows), chunks, cost and cost(rows))
    recomputed = jax.checkpoint(function, prevent_cse=False)
    cut = jax.tree.map(lambda row: row[taken], rows)
    outputs = jax.lax.map(lambda chunk: recomputed(params, chunk), cut)
    return jax.tree.map(lambda out: out.reshape(-1, *out.shape[2:])[place], outputs)


def _deal(count: int, chunks: int, costs: jax.Array | None) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the rows of each chunk [chunks, size], whether they count there, and the place of each row [count].

    Chunks are padded with real rows, so that all values are finite.
    """
    size = math.ceil(count / chunks)
    counts = jnp.arange(chunks * size) < count
    if costs is None:
        # Row i is the (i % size)-th of chunk i // size. The last row fills the last chunk up.
        taken = jnp.minimum(jnp.arange(chunks * size), count - 1).reshape(chunks, size)
        return taken, counts.reshape(chunks, size), jnp.arange(count)
    # As `data.packing.deal`: the i-th in order of cost is the (i // chunks)-th of chunk i % chunks.
    order = jnp.argsort(costs)
    filled = jnp.where(counts, jnp.pad(order, (0, chunks * size - count)), order[0])
    rank = jnp.argsort(order)
    return filled.reshape(size, chunks).T, counts.reshape(size, chunks).T, rank % chunks * size + rank // chunks


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _summed(
    execution: Execution, function: Callable, chunks: int, costs: jax.Array | None, params: Tree, moving: Tree, fixed
) -> tuple[jax.Array, Tree]:
    def of_chunk(params, rows, counts):
        return function(params, *rows, counts), ()

    return _sum_chunks(execution, of_chunk, chunks, costs, params, (moving, fixed))[0]


def _summed_forward(execution, function, chunks, costs, params, moving, fixed):
    def of_chunk(params, rows, counts):
        compute = jax.value_and_grad(function, (0, 1), has_aux=True)
        (value, others), (to_params, to_moving) = compute(params, *rows, counts)
        return (value, others, to_params), to_moving

    sums, to_moving = _sum_chunks(execution, of_chunk, chunks, costs, params, (moving, fixed))
    value, others, to_params = sums
    return (value, others), (to_params, to_moving)


def _summed_backward(execution, function, chunks, gradients, cotangents):
    del execution, function, chunks
    scaled = jax.tree.map(lambda gradient: (cotangents[0] * gradient).astype(gradient.dtype), gradients)
    return None, *scaled, None


_summed.defvjp(_summed_forward, _summed_backward)


def _sum_chunks(
    execution: Execution, function: Callable, chunks: int, costs: jax.Array | None, params: Tree, rows: Tree
) -> tuple[Tree, Tree]:
    """Calls (params, rows, counts) -> (sums, outputs by row) in chunks, on each device with its own rows.

    Returns:
      The sums over all rows, and the outputs, of their leading axis.
    """

    def of_shard(params, rows_and_costs):
        rows, costs = rows_and_costs
        count = count_rows(rows)
        if chunks == 1:
            sums, outputs = function(params, rows, jnp.ones(count, bool))
        else:
            taken, counts, place = _deal(count, chunks, costs)
            cut = jax.tree.map(lambda row: row[taken], rows), counts
            sums = jax.eval_shape(lambda: function(params, *jax.tree.map(lambda x: x[0], cut))[0])

            def add(sums, chunk):
                more, outputs = function(params, *chunk)
                return jax.tree.map(jnp.add, sums, more), outputs

            none = jax.tree.map(lambda like: jnp.zeros(like.shape, like.dtype), sums)
            sums, outputs = jax.lax.scan(add, none, cut)
            outputs = jax.tree.map(lambda out: out.reshape(-1, *out.shape[2:])[place], outputs)
        return sums if execution.shards == 1 else jax.lax.psum(sums, BATCH_AXES), outputs

    if execution.shards == 1:
        with execution.on_mesh():
            return of_shard(params, (rows, costs))
    return execution._on_each_shard(of_shard, (WHOLE, ROWS), (WHOLE, ROWS))(params, (rows, costs))
