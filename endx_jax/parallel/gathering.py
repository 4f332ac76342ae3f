"""Layers whose matrices `fsdp` splits have them whole one layer at a time, and split again after it.

Each matrix is cast to the precision of the computation first and gathered then, so that bfloat16 is what travels, and
its gradient goes back to the same parts. Left to itself, the compiler gathers float32, or, worse, activations: of whole
batches, where a product's rows and its matrix are split over the same devices.
"""

import functools
from typing import Any

import flax.linen as nn
import flax.struct
import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from endx_jax.models.sharding_hints import FSDP
from endx_jax.parallel.sharding import partition_spec, rule_of


def gathered_by_layer(params, mesh: Mesh, dtype: DTypeLike):
    """Boxes the matrices that layers are to gather for themselves, by the table of `parallel.sharding`.

    Args:
      params: an objective's, or a part of them with paths that end alike.
      mesh: the devices.
      dtype: of the computation.

    Returns:
      A tree like `params`, with a `Gathered` in place of each such matrix.
    """

    def box(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        spec = partition_spec(name, leaf.shape, mesh)
        return Gathered(leaf, spec, mesh, dtype) if rule_of(name).by_layer and FSDP in spec else leaf

    return jax.tree_util.tree_map_with_path(box, params) if mesh.shape[FSDP] > 1 else params


class Gathered(flax.struct.PyTreeNode, nn.meta.AxisMetadata):
    """Box around a matrix that is gathered when `nn.Module.param` unboxes it.

    Attributes:
      value: the matrix, or those of all layers, stacked.
      spec: how it is split.
      mesh: the devices.
      dtype: that it is cast to.
    """

    value: Any
    spec: PartitionSpec = flax.struct.field(pytree_node=False)
    mesh: Mesh = flax.struct.field(pytree_node=False)
    dtype: DTypeLike = flax.struct.field(pytree_node=False)

    def unbox(self):
        """Returns the matrix, gathered over all axes but `tensor`."""
        whole = PartitionSpec(*(None if axis == FSDP else axis for axis in self.spec))
        split_and_whole = (NamedSharding(self.mesh, spec) for spec in (self.spec, whole))
        return _gather(*split_and_whole, self.value.astype(self.dtype))

    def replace_boxed(self, val):
        """Another value in the same box."""
        return self.replace(value=val)

    def add_axis(self, index, params):
        """For a scan that stacks it."""
        del params
        axes = list(self.spec)
        return self.replace(spec=PartitionSpec(*axes[:index], None, *axes[index:]))

    def remove_axis(self, index, params):
        """For a scan that takes one layer of it at a time."""
        del params
        axes = list(self.spec)
        return self.replace(spec=PartitionSpec(*axes[:index], *axes[index + 1 :]))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _gather(split: NamedSharding, whole: NamedSharding, value: jax.Array) -> jax.Array:
    return _gather_forward(split, whole, value)[0]


def _gather_forward(split, whole, value):
    # In its parts first, so that the compiler does not gather what `value` was cast from.
    return jax.lax.with_sharding_constraint(jax.lax.with_sharding_constraint(value, split), whole), None


def _gather_backward(split, whole, _, gradient):
    del whole
    return (jax.lax.with_sharding_constraint(gradient, split),)


_gather.defvjp(_gather_forward, _gather_backward)
