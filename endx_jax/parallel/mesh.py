"""The device mesh."""

import dataclasses
import math

import jax

from endx_jax.errors import EndxError
from endx_jax.settings import check, key

AXES = ("data", "fsdp", "tensor")


@dataclasses.dataclass(frozen=True)
class MeshSettings:
    """Numbers of devices along each mesh axis, `config.mesh`; none of them changes results."""

    data: int = key(
        -1, "Devices that split the batch. -1: all devices that the other axes leave.", changes_results=False
    )
    fsdp: int = key(1, "Devices that split both the batch and the parameters.", changes_results=False)
    tensor: int = key(1, "Devices that split the width of each layer.", changes_results=False)

    def __post_init__(self):
        for name in AXES:
            size = getattr(self, name)
            check(
                size == -1 or size > 0, f"mesh.{name} is {size}; it must be positive, or -1 for the devices left over"
            )
        check([self.data, self.fsdp, self.tensor].count(-1) <= 1, "only one axis of mesh may be -1")


def make_mesh(settings: MeshSettings, devices=None) -> jax.sharding.Mesh:
    """Builds the mesh over all devices of all processes, in an order that follows their links.

    Raises:
      EndxError: when the axes do not multiply to the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    sizes = [settings.data, settings.fsdp, settings.tensor]
    fixed = math.prod(size for size in sizes if size != -1)
    shape = tuple(len(devices) // fixed if size == -1 else size for size in sizes)
    if math.prod(shape) != len(devices):
        asked = " x ".join(f"{axis}={size}" for axis, size in zip(AXES, sizes, strict=True))
        raise EndxError(f"the mesh {asked} does not fit {len(devices)} devices; set --config.mesh.* so that it does")
    # Auto axes: the compiler places the collectives that a global-batch program needs.
    return jax.make_mesh(shape, AXES, axis_types=(jax.sharding.AxisType.Auto,) * len(AXES), devices=devices)
