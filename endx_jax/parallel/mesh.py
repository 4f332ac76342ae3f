"""The device mesh."""

import dataclasses
import math
import os
from collections.abc import Sequence

import jax
from jax.experimental import mesh_utils
from jax.sharding import Mesh

from endx_jax.errors import EndxError
from endx_jax.parallel.environment import check_flags
from endx_jax.settings import key, require

AXES = ("data", "fsdp", "tensor")
_process: int | None = None  # id of the process that used devices first


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
            require(size == -1 or size > 0, f"mesh.{name} is {size}; it must be positive, or -1 for all left over")
        require([self.data, self.fsdp, self.tensor].count(-1) <= 1, "only one axis of mesh may be -1")


def check_process() -> None:
    """Raises EndxError in a process that was forked after its parent had used devices: JAX would hang there."""
    global _process
    _process = _process or os.getpid()
    if _process != os.getpid():
        reason = "this process was forked after a model had been loaded, and JAX can't run in it"
        raise EndxError(f"{reason}: start processes by spawn, as by multiprocessing.get_context('spawn')")


def make_mesh(settings: MeshSettings, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Builds the mesh over devices, by default all of all processes, in an order that follows their links.

    The axes multiply to the number of devices. On several TPU slices, only `data`, a multiple of their number, crosses
    the network between them.
    """
    check_process()
    check_flags()
    devices = jax.devices() if devices is None else devices
    count = len(devices)
    sizes = [settings.data, settings.fsdp, settings.tensor]
    fixed = math.prod(size for size in sizes if size != -1)
    shape = tuple(count // fixed if size == -1 else size for size in sizes)
    asked = " x ".join(f"{axis}={size}" for axis, size in zip(AXES, sizes, strict=True))
    if math.prod(shape) != count:
        divisors = ", ".join(str(n) for n in range(1, count + 1) if count % n == 0)
        raise EndxError(f"the mesh {asked} does not fit {count} devices: each axis is -1 or one of {divisors}")
    # A single slice of TPUs has no index. GPUs have one per node, but any axis may cross their network.
    slices = len({getattr(device, "slice_index", None) for device in devices}) if devices[0].platform == "tpu" else 1
    if shape[0] % slices:
        raise EndxError(
            f"the mesh {asked} does not fit {slices} slices of {count // slices} devices, since only `data` goes over "
            f"the network between slices: set mesh.data={slices} or a multiple of it"
        )
    # An axis of the torus is split only if no axes multiply to an axis of the mesh, such as 8 on 4 x 4 x 4.
    if slices == 1:
        placed = mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
    else:
        within, over = (shape[0] // slices, *shape[1:]), (slices, 1, 1)
        placed = mesh_utils.create_hybrid_device_mesh(within, over, devices, allow_split_physical_axes=True)
    # Auto axes: the compiler places the collectives that a global-batch program needs.
    return Mesh(placed, AXES, axis_types=(jax.sharding.AxisType.Auto,) * len(AXES))
