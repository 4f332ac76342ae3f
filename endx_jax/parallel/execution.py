"""Division of a step's work over devices and chunks of rows, which does not affect results.

Chunked towers are GradCache (Gao et al. 2021) inside one compiled step: a loop over chunks of rows, each of which is
encoded again in the backward pass. Memory holds the embeddings of all rows and the activations of one chunk.
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jax.typing import DTypeLike

from endx_jax.numerics import leading_size
from endx_jax.parallel.gathering import gathered_by_layer, partitions
from endx_jax.parallel.sharding import BATCH_AXES, batch_shards

WHOLE, ROWS = PartitionSpec(), PartitionSpec(BATCH_AXES)

TOWERS = "towers"  # name of row-wise computations in profiles and programs

Tree = Any  # a tree of arrays, or None


@dataclasses.dataclass(frozen=True)
class Execution:
    """Division of a step's work over devices and chunks.

    Attributes:
      mesh: device mesh; None for one device, or for a placement by the compiler.
      tower_chunk: maximum number of rows that a device encodes at a time; 0 for all its rows.
      loss_tile: rows of scores that a loss has in memory at a time; None for all of them.
      packed: true if texts are laid out without padding, separately for each chunk of each device.
      dtype: dtype of the towers' layers, to which matrices are cast before they are gathered over `fsdp`.
      by_layer: true if matrices that are split over `fsdp` are gathered layer by layer in the loop over chunks, and not
        whole before it.
    """

    mesh: Mesh | None = None
    tower_chunk: int = 0
    loss_tile: int | None = None
    packed: bool = False
    dtype: DTypeLike = jnp.float32
    by_layer: bool = False

    def chunks(self, rows: int) -> int:
        """Returns the number of chunks in which a device encodes its part of a global batch of `rows` rows."""
        own_rows = rows // self.shards
        return math.ceil(own_rows / self.tower_chunk) if 0 < self.tower_chunk < own_rows else 1

    def map_rows(
        self,
        function: Callable[[Tree, Tree], Tree],
        params: Tree,
        rows: Tree,
        cost: Callable[[Tree], jax.Array] | None = None,
    ) -> Tree:
        """Applies a row-wise function in chunks.

        Chunks are cut from each device's own rows. The gradient of `params` is summed over the chunks first and reduced
        over devices once, after the loop. Inside the loop, parameters are not split over `fsdp`; they are still split
        over `tensor`. With `by_layer`, each layer gathers its matrices inside the loop, in every pass, and reduces
        their gradient there if they have one.

        Args:
          function: function (params, rows) -> outputs, in which each output row depends on the same input row only.
          params: tree to differentiate; `function` must not close over differentiated values.
          rows: tree of arrays, typed keys included, with the rows of the global batch on their leading axis.
          cost: function from rows to a cost of each row, such as its number of tokens. Rows are distributed
            round-robin over the chunks in order of cost, so that chunks cost about the same; None keeps their order.

        Returns:
          The outputs, with the leading axis of `rows`.
        """
        function = jax.named_scope(TOWERS)(function)
        chunks = self.chunks(leading_size(rows))
        if chunks == 1 and not self.packed:
            return self.on_all(function, params, rows)

        def run(params, rows):
            if chunks == 1:
                return function(params, rows)
            outputs, positions = _map_chunks(lambda p, r, _: function(p, r), chunks, cost, params, rows)
            return jax.tree.map(lambda out: out.reshape(-1, *out.shape[2:])[positions], outputs)

        if self.by_layer and self.mesh is not None:
            params = gathered_by_layer(params, self.mesh, self.dtype)
        return self._on_each_shard(run, params, rows)

    def sum_rows(
        self,
        function: Callable[[Tree, Tree, jax.Array], Tree],
        params: Tree,
        rows: Tree,
        cost: Callable[[Tree], jax.Array] | None = None,
    ) -> Tree:
        """Sums a function over rows in chunks, for sums that cost less memory than a value of each row.

        `function` (params, rows, valid) returns a tree of scalars. Each is a sum over the rows where `valid`, bool [R],
        of terms that depend on their row only. The other arguments are those of `map_rows`.
        """
        function = jax.named_scope(TOWERS)(function)
        chunks = self.chunks(leading_size(rows))
        sums = self._on_each_shard(lambda p, r: _map_chunks(function, chunks, cost, p, r)[0], params, rows)
        return jax.tree.map(lambda sums: jnp.sum(sums, axis=0), sums)

    def reduce_rows(self, function: Callable[[Tree, Tree, Any], Tree], params: Tree, rows: Tree) -> Tree:
        """Applies a function that combines rows, such as a loss, on each device with its own rows.

        Args:
          function: function (params, rows, axis_name) -> scalars of the global batch. If `axis_name` is not None,
            `rows` are those of one device, and collectives over these mesh axes reach the other rows. It must not close
            over differentiated values.
          params: tree that is replicated on each device, such as a temperature.
          rows: tree of arrays with the rows of the global batch on their leading axis.

        Returns:
          The scalars.

        Examples:
          >>> from endx_jax.parallel.execution import Execution
          >>> def total(scale, rows, axis_name):
          ...     own = scale * jnp.sum(rows)
          ...     return own if axis_name is None else jax.lax.psum(own, axis_name)
          >>> print(Execution().reduce_rows(total, 0.5, jnp.array([1.0, 2.0, 3.0])))
          3.0
        """
        if self.loss_tile is None or self.shards == 1:
            return function(params, rows, None)
        return self._on_each_shard(lambda whole, own: function(whole, own, BATCH_AXES), params, rows, WHOLE)

    @property
    def shards(self) -> int:
        """Number of parts into which a batch is split over devices."""
        return 1 if self.mesh is None else batch_shards(self.mesh)

    def on_all(self, function: Callable[[Tree, Tree], Tree], params: Tree, rows: Tree) -> Tree:
        """Applies a function of `map_rows` to all rows at once; the compiler splits the work over devices.

        If parameters are split, the compiler gets hints: see `parallel.gathering` and `models.sharding_hints`.
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

    def _on_each_shard(self, function: Callable[[Tree, Tree], Tree], params: Tree, rows: Tree, out_specs=ROWS) -> Tree:
        """Applies `function` to each part of the batch; the compiler handles the other mesh axes."""
        if self.shards == 1:
            with self.on_mesh():
                return function(params, rows)
        # With `check_vma`, replicated parameters would become varying inside the loop over chunks, which would put the
        # reduction of their gradient into the loop (tests/parallel/test_execution.py counts the reductions), and JAX
        # would reject every loop in `function` whose carry starts as a constant.
        return jax.shard_map(
            function,
            mesh=self.mesh,
            in_specs=(partitions(params), ROWS),
            out_specs=out_specs,
            axis_names=set(BATCH_AXES),
            check_vma=False,
        )(params, rows)


def _map_chunks(
    function: Callable[[Tree, Tree, jax.Array], Tree],
    chunks: int,
    cost: Callable[[Tree], jax.Array] | None,
    params: Tree,
    rows: Tree,
) -> tuple[Tree, jax.Array]:
    """Applies a function (params, rows, valid) to chunks, again in the backward pass; returns also rows' positions."""
    count = leading_size(rows)
    if chunks == 1:
        outputs = function(params, rows, jnp.ones(count, bool))
        return jax.tree.map(lambda out: out[None], outputs), jnp.arange(count)
    indices, valid, positions = _assign_chunks(count, chunks, cost and cost(rows))
    recomputed = jax.checkpoint(function, prevent_cse=False)
    chunked = jax.tree.map(lambda row: row[indices], rows)
    return jax.lax.map(lambda chunk: recomputed(params, *chunk), (chunked, valid)), positions


def _assign_chunks(count: int, chunks: int, costs: jax.Array | None) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the rows of chunks, and which do not only fill one, [chunks, size]; and the positions of rows [count]."""
    size = math.ceil(count / chunks)
    valid = jnp.arange(chunks * size) < count  # chunks are filled with real rows, whose values are finite
    if costs is None:
        # Row i is the (i % size)-th of chunk i // size. Copies of the last row fill the last chunk.
        indices = jnp.minimum(jnp.arange(chunks * size), count - 1).reshape(chunks, size)
        return indices, valid.reshape(chunks, size), jnp.arange(count)
    # As in `data.batches.packing.deal`, the i-th row in order of cost is the (i // chunks)-th of chunk i % chunks.
    order = jnp.argsort(costs)
    filled = jnp.where(valid, jnp.pad(order, (0, chunks * size - count)), order[0])
    rank = jnp.argsort(order)
    return filled.reshape(size, chunks).T, valid.reshape(size, chunks).T, rank % chunks * size + rank // chunks
