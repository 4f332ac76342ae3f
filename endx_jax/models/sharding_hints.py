"""Platform of the mesh that a module is traced for, and sharding constraints that have an effect under such a mesh.

`parallel.execution` sets the mesh. If `fsdp` or `tensor` split parameters, the compiler partitions the step. If the
rows of the batch and of a matrix are split over the same devices, it might move the batch without these hints.
"""

import jax
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

BATCH_AXES = ("data", "fsdp")
FSDP, TENSOR = "fsdp", "tensor"


def platform(mesh: Mesh | AbstractMesh | None = None) -> str:
    """Returns the platform (cpu, gpu, tpu) of a mesh; by default of the mesh in use, else of the default device.

    The mesh may be of a topology description, whose devices this process does not have, or be abstract.
    """
    device = (mesh.abstract_mesh if mesh else jax.sharding.get_abstract_mesh()).abstract_device
    name = jax.default_backend() if device is None else device.platform
    return "gpu" if name in ("cuda", "rocm") else name


def keep_rows(x: jax.Array) -> jax.Array:
    """Constrains the rows of an array [B, ...], and of its gradient, to the devices of their part of the batch."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.manual_axes or mesh.size == mesh.shape["data"]:  # the compiler splits no parameters
        return x
    return jax.lax.with_sharding_constraint(x, PartitionSpec(BATCH_AXES, *(None,) * (x.ndim - 1)))


def axes_left() -> dict[str, int]:
    """Returns the mesh axes that are left to the compiler, and the devices along each."""
    mesh = jax.sharding.get_abstract_mesh()
    return {} if mesh.empty else {name: n for name, n in mesh.shape.items() if name not in mesh.manual_axes}
