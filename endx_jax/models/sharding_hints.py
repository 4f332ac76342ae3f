"""Sharding constraints inside of modules, in effect only under a mesh.

`parallel.execution` sets a mesh where `fsdp` or `tensor` split parameters and the compiler splits the work. Where a
batch's and a matrix's rows are split over the same devices, the compiler might move the batch's without these hints.
"""

import jax
from jax.sharding import AbstractMesh, PartitionSpec

BATCH_AXES = ("data", "fsdp")
FSDP = "fsdp"


def keep_rows(x: jax.Array) -> jax.Array:
    """The same array [B, ...], each row on the devices that have this part of the batch; and so its gradient."""
    if _mesh() is None:
        return x
    return jax.lax.with_sharding_constraint(x, PartitionSpec(BATCH_AXES, *(None,) * (x.ndim - 1)))


def layers_are_gathered() -> bool:
    """Returns true if a layer's matrices are gathered from several devices when the layer runs."""
    mesh = _mesh()
    return mesh is not None and mesh.shape[FSDP] > 1


def _mesh() -> AbstractMesh | None:
    """The mesh over which the compiler splits what is traced; None inside of `jax.shard_map`, where rows are split."""
    mesh = jax.sharding.get_abstract_mesh()
    return None if mesh.empty or mesh.manual_axes else mesh
