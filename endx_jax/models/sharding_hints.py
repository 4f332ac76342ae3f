"""The mesh that a module is traced for: its platform, and sharding constraints where it splits parameters.

`parallel.execution` sets the mesh. Where `fsdp` or `tensor` split parameters, the compiler splits the work, and where a
batch's and a matrix's rows are split over the same devices, it might move the batch's without these hints.
"""

import jax
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

BATCH_AXES = ("data", "fsdp")
FSDP, TENSOR = "fsdp", "tensor"


def platform(mesh: Mesh | None = None) -> str:
    """Returns cpu, gpu or tpu: of a mesh, of the mesh that is traced for, or where there is none of the default device.

    The devices of a mesh may be those of a described topology, for which this process compiles and has none.
    """
    device = mesh.devices.flat[0] if mesh else jax.sharding.get_abstract_mesh().abstract_device
    name = jax.default_backend() if device is None else device.platform
    return "gpu" if name in ("cuda", "rocm") else name


def keep_rows(x: jax.Array) -> jax.Array:
    """The same array [B, ...], each row on the devices that have this part of the batch; and so its gradient."""
    if _mesh() is None:
        return x
    return jax.lax.with_sharding_constraint(x, PartitionSpec(BATCH_AXES, *(None,) * (x.ndim - 1)))


def axes_left() -> dict[str, int]:
    """Returns the mesh axes that are left to the compiler, and the devices along each."""
    mesh = jax.sharding.get_abstract_mesh()
    return {} if mesh.empty else {name: n for name, n in mesh.shape.items() if name not in mesh.manual_axes}


def layers_are_gathered() -> bool:
    """Returns true if a layer's matrices are gathered from several devices when the layer runs."""
    mesh = _mesh()
    return mesh is not None and mesh.shape[FSDP] > 1


def _mesh() -> AbstractMesh | None:
    """The mesh whose parameters the compiler splits; None inside of `jax.shard_map`, where rows are split."""
    mesh = jax.sharding.get_abstract_mesh()
    return None if mesh.empty or mesh.manual_axes or mesh.size == mesh.shape["data"] else mesh
