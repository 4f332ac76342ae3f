"""Gathering of matrices that are split over `fsdp`, one layer at a time.

Each matrix is cast to the dtype of the computation before it is gathered, so that devices exchange bfloat16, and its
gradient is split in the same way. Without this, the compiler gathers float32 matrices, or the activations of whole
batches where rows and matrix of a product are split over the same devices.
"""

import functools
from typing import Any

import flax.linen as nn
import flax.struct
import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from endx_jax.models.sharding_hints import FSDP
from endx_jax.parallel.sharding import map_paths, partition_spec, rule_of


def partitions(params):
    """Returns the partition over `fsdp` of each leaf of a tree with boxes, for `jax.shard_map`."""

    def partition(leaf):
        return leaf.replace(value=leaf.own) if isinstance(leaf, Gathered) else PartitionSpec()

    return jax.tree.map(partition, params, is_leaf=lambda leaf: isinstance(leaf, Gathered))


def gathered_by_layer(params, mesh: Mesh, dtype: DTypeLike):
    """Returns parameters in which the matrices that `parallel.sharding.RULES` marks `by_layer` are `Gathered`.

    Their layer then gathers them, in the dtype of the computation. `params` may be a subtree of an objective's.
    """

    def box(path: str, leaf):
        spec = partition_spec(path, leaf.shape, mesh)
        return Gathered(leaf, spec, mesh, dtype) if rule_of(path).by_layer and FSDP in spec else leaf

    return map_paths(box, params) if mesh.shape[FSDP] > 1 else params


class Gathered(flax.struct.PyTreeNode, nn.meta.AxisMetadata):
    """Box around a matrix of a partition, which is cast to `dtype` and gathered when `nn.Module.param` unboxes it."""

    value: Any
    spec: PartitionSpec = flax.struct.field(pytree_node=False)
    mesh: Mesh = flax.struct.field(pytree_node=False)
    dtype: DTypeLike = flax.struct.field(pytree_node=False)

    @property
    def own(self) -> PartitionSpec:
        """Partition over `fsdp` alone, for `jax.shard_map`."""
        return PartitionSpec(*(axis if axis == FSDP else None for axis in self.spec))

    def unbox(self):
        """Returns the matrix, gathered over `fsdp`; inside `jax.shard_map`, `value` is this device's part."""
        if FSDP in jax.sharding.get_abstract_mesh().manual_axes:
            return jax.lax.all_gather(self.value.astype(self.dtype), FSDP, axis=self.spec.index(FSDP), tiled=True)
        whole = PartitionSpec(*(None if axis == FSDP else axis for axis in self.spec))
        split_and_whole = (NamedSharding(self.mesh, spec) for spec in (self.spec, whole))
        return _gather(*split_and_whole, self.value.astype(self.dtype))

    def replace_boxed(self, val):
        """Returns the box with another value."""
        return self.replace(value=val)

    def add_axis(self, index, params):
        """Required by Flax for `nn.scan` of modules, which is not used: `models/stack.py` leaves boxes as they are."""
        raise NotImplementedError

    remove_axis = add_axis


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _gather(split: NamedSharding, whole: NamedSharding, value: jax.Array) -> jax.Array:
    return _gather_forward(split, whole, value)[0]


def _gather_forward(split, whole, value):
    # The first constraint keeps the compiler from gathering before the cast.
    return jax.lax.with_sharding_constraint(jax.lax.with_sharding_constraint(value, split), whole), None


def _gather_backward(split, whole, _, gradient):
    del whole
    return (jax.lax.with_sharding_constraint(gradient, split),)


_gather.defvjp(_gather_forward, _gather_backward)
