"""Division of a step's work over devices and chunks of rows, which does not affect results.

Chunked towers are GradCache (Gao et al. 2021) inside one compiled step: a loop over chunks of rows, each of which is
encoded again in the backward pass. Memory holds the embeddings of all rows and the activations of one chunk.
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
        chunks = self.chunks(count_rows(rows))
        run = function if chunks == 1 else functools.partial(_in_chunks, function, chunks, cost)
        if chunks == 1 and not self.packed:
            return self.on_all(function, params, rows)
        if self.shards == 1:
            with self.on_mesh():
                return run(params, rows)
        if self.by_layer and self.mesh is not None:
            params = gathered_by_layer(params, self.mesh, self.dtype)
        return self._on_each_shard(run, (partitions(params), ROWS), ROWS)(params, rows)

    def sum_rows(
        self,
        function: Callable[[Tree, Tree, jax.Array], tuple[jax.Array, Tree]],
        params: Tree,
        rows: Tree,
        cost: Callable[[Tree], jax.Array] | None = None,
    ) -> tuple[jax.Array, Tree]:
        """Sums a function over rows in chunks, without the second forward pass of `map_rows`.

        The result is a sum, so the gradient of each chunk is computed right after its value. As in `map_rows`, memory
        holds the activations of one chunk.

        Args:
          function: function (params, rows, valid) -> (scalar, tree of scalars for the log). Each scalar is a sum over
            the rows where `valid`, bool [R], of terms that depend on their row only. It must not close over
            differentiated values.
          params: tree to differentiate. The floating-point arrays of `rows` are differentiated too.
          rows: tree of arrays with the rows of the global batch on their leading axis.
          cost: function from rows to a cost of each row, as in `map_rows`.

        Returns:
          The sums over all rows: the scalar, which has a gradient, and the tree of scalars, which has none.
        """
        function = jax.named_scope(TOWERS)(function)
        leaves, structure = jax.tree.flatten(rows)
        moving = [x if jnp.issubdtype(x.dtype, jnp.inexact) else None for x in leaves]
        fixed = [x if y is None else None for x, y in zip(leaves, moving, strict=True)]

        def merged(params, moving, fixed, valid):
            both = [x if y is None else y for x, y in zip(fixed, moving, strict=True)]
            return function(params, jax.tree.unflatten(structure, both), valid)

        return _summed(self, merged, self.chunks(count_rows(rows)), cost and cost(rows), params, moving, fixed)

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
        on_shard = self._on_each_shard(lambda whole, own: function(whole, own, BATCH_AXES), (WHOLE, ROWS), WHOLE)
        return on_shard(params, rows)

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

    def _on_each_shard(self, function: Callable, in_specs, out_specs) -> Callable:
        """Maps `function` over the parts of the batch; the compiler handles the other mesh axes.

        `check_vma` is off. With it, replicated parameters would become varying inside the loop over chunks, which would
        put the reduction of their gradient into the loop (tests/parallel/test_execution.py counts the reductions), and
        JAX would reject every loop in `function` whose carry starts as a constant.
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
    """Returns the length of the leading axis of a tree's arrays."""
    return jax.tree.leaves(rows)[0].shape[0]


def _in_chunks(
    function: Callable[[Tree, Tree], Tree],
    chunks: int,
    cost: Callable[[Tree], jax.Array] | None,
    params: Tree,
    rows: Tree,
) -> Tree:
    """Applies `function` in a loop over chunks of equal size and recomputes its activations in the backward pass."""
    indices, _, positions = _assign_chunks(count_rows(rows), chunks, cost and cost(rows))
    recomputed = jax.checkpoint(function, prevent_cse=False)
    chunked = jax.tree.map(lambda row: row[indices], rows)
    outputs = jax.lax.map(lambda chunk: recomputed(params, chunk), chunked)
    return jax.tree.map(lambda out: out.reshape(-1, *out.shape[2:])[positions], outputs)


def _assign_chunks(count: int, chunks: int, costs: jax.Array | None) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Assigns rows to chunks of equal size.

    Returns:
      (indices, valid, positions): the rows of each chunk [chunks, size]; false for rows that only fill a chunk
      [chunks, size]; the position of each row in the flattened chunks [count]. Chunks are filled with real rows, whose
      values are finite.
    """
    size = math.ceil(count / chunks)
    valid = jnp.arange(chunks * size) < count
    if costs is None:
        # Row i is the (i % size)-th of chunk i // size. Copies of the last row fill the last chunk.
        indices = jnp.minimum(jnp.arange(chunks * size), count - 1).reshape(chunks, size)
        return indices, valid.reshape(chunks, size), jnp.arange(count)
    # As in `data.batches.packing.deal`, the i-th row in order of cost is the (i // chunks)-th of chunk i % chunks.
    order = jnp.argsort(costs)
    filled = jnp.where(valid, jnp.pad(order, (0, chunks * size - count)), order[0])
    rank = jnp.argsort(order)
    return filled.reshape(size, chunks).T, valid.reshape(size, chunks).T, rank % chunks * size + rank // chunks


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _summed(
    execution: Execution, function: Callable, chunks: int, costs: jax.Array | None, params: Tree, moving: Tree, fixed
) -> tuple[jax.Array, Tree]:
    def value(params, rows, valid):
        return function(params, *rows, valid), ()

    return _sum_chunks(execution, value, chunks, costs, params, (moving, fixed))[0]


def _summed_forward(execution, function, chunks, costs, params, moving, fixed):
    def value_and_gradients(params, rows, valid):
        compute = jax.value_and_grad(function, (0, 1), has_aux=True)
        (value, aux), (params_gradient, moving_gradient) = compute(params, *rows, valid)
        return (value, aux, params_gradient), moving_gradient

    sums, moving_gradient = _sum_chunks(execution, value_and_gradients, chunks, costs, params, (moving, fixed))
    value, aux, params_gradient = sums
    return (value, aux), (params_gradient, moving_gradient)


def _summed_backward(execution, function, chunks, gradients, cotangents):
    del execution, function, chunks
    scaled = jax.tree.map(lambda gradient: (cotangents[0] * gradient).astype(gradient.dtype), gradients)
    return None, *scaled, None


_summed.defvjp(_summed_forward, _summed_backward)


def _sum_chunks(
    execution: Execution, function: Callable, chunks: int, costs: jax.Array | None, params: Tree, rows: Tree
) -> tuple[Tree, Tree]:
    """Applies a function (params, rows, valid) -> (sums, row-wise outputs) in chunks of each device's own rows.

    Returns:
      The sums over all rows, and the outputs with the leading axis of `rows`.
    """

    def sum_shard(params, rows_and_costs):
        rows, costs = rows_and_costs
        count = count_rows(rows)
        if chunks == 1:
            sums, outputs = function(params, rows, jnp.ones(count, bool))
        else:
            indices, valid, positions = _assign_chunks(count, chunks, costs)
            chunked = jax.tree.map(lambda row: row[indices], rows), valid
            shapes = jax.eval_shape(lambda: function(params, *jax.tree.map(lambda x: x[0], chunked))[0])

            def add(sums, chunk):
                more, outputs = function(params, *chunk)
                return jax.tree.map(jnp.add, sums, more), outputs

            zeros = jax.tree.map(lambda like: jnp.zeros(like.shape, like.dtype), shapes)
            sums, outputs = jax.lax.scan(add, zeros, chunked)
            outputs = jax.tree.map(lambda out: out.reshape(-1, *out.shape[2:])[positions], outputs)
        return sums if execution.shards == 1 else jax.lax.psum(sums, BATCH_AXES), outputs

    if execution.shards == 1:
        with execution.on_mesh():
            return sum_shard(params, (rows, costs))
    return execution._on_each_shard(sum_shard, (WHOLE, ROWS), (WHOLE, ROWS))(params, (rows, costs))
