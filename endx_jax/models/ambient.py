"""What a module may know of the devices while it is traced: nothing, unless a mesh is set around it.

`parallel.execution` sets one where `fsdp` or `tensor` split parameters and the compiler splits the work. There it needs
a word: where a batch's rows and a matrix's lie over the same devices, it may well choose to move the rows.
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
    """Whether a layer's matrices are brought together from several devices when the layer comes."""
    mesh = _mesh()
    return mesh is not None and mesh.shape[FSDP] > 1


def _mesh() -> AbstractMesh | None:
    """The mesh over which the compiler splits what is traced; None inside of `jax.shard_map`, where rows are split."""
    mesh = jax.sharding.get_abstract_mesh()
    return None if mesh.empty or mesh.manual_axes else mesh
