"""Accelerators that are not here, described for their compilers."""

import ctypes.util
import dataclasses
import importlib.util
import math
import os
import re

import jax
from jax.experimental import topologies

from endx_jax.errors import EndxError, first_line, install
from endx_jax.planning.chips import Chip, chip_named

NAME = re.compile(r"(?:(\d+)x)?(\w+):(\d+(?:x\d+)*)")
# Dimensions of the torus of a TPU slice, and how Cloud TPU names a slice; v4's compiler knows no pair of cores as one.
TORUS = {"v5e": 2, "v6e": 2, "v5p": 3}
ACCELERATORS = {"v5e": "v5litepod-{0}", "v6e": "v6e-{0}", "v5p": "v5p-{1}"}
GPUS_OF_A_NODE = 8


def _gpu(cores: int, lanes: int, clock: float, cache: int, shared: int, version: str, threads=2048) -> dict:
    """Returns properties of a GPU: streaming multiprocessors, their float32 lanes, GHz, MiB of cache, KiB shared."""
    return {
        "core_count": cores,
        "fpus_per_core": lanes,
        "clock_rate_ghz": clock,
        "l2_cache_size": cache * 2**20,
        "shared_memory_per_core": shared * 2**10,
        "shared_memory_per_block_optin": (shared - 1) * 2**10,
        "threads_per_core_limit": threads,
        "threads_per_block_limit": 1024,
        "threads_per_warp": 32,
        "shared_memory_per_block": 48 * 2**10,
        "registers_per_core_limit": 2**16,
        "registers_per_block_limit": 2**16,
        "block_dim_limit_x": 2**31 - 1,
        "block_dim_limit_y": 2**16 - 1,
        "block_dim_limit_z": 2**16 - 1,
        "cuda_compute_capability": "{{ major: {} minor: {} }}".format(*version.split(".")),
    }


# From NVIDIA's data sheets and architecture papers (Ampere, Hopper, Ada).
GPUS = {
    "L4": _gpu(58, 128, 2.04, 48, 100, "8.9", 1536),
    "A10G": _gpu(80, 128, 1.71, 6, 100, "8.6", 1536),
    "RTX4090": _gpu(128, 128, 2.52, 72, 100, "8.9", 1536),
    "A100": _gpu(108, 64, 1.41, 40, 164, "8.0"),
    "H100": _gpu(132, 128, 1.98, 50, 228, "9.0"),
    "H200": _gpu(132, 128, 1.98, 50, 228, "9.0"),
}


@dataclasses.dataclass(frozen=True)
class Topology:
    """Topology of accelerators.

    Attributes:
      chip: the chip of each device.
      shape: shape of a TPU slice's torus, or the number of GPUs.
      slices: number of such slices; 1 for GPUs.
    """

    chip: Chip
    shape: tuple[int, ...]
    slices: int = 1

    def __post_init__(self):
        some_left = self.chip.platform == "gpu" and self.size > GPUS_OF_A_NODE and self.size % GPUS_OF_A_NODE
        if self.size < 1 or some_left:
            raise EndxError(
                f"{self} can't be planned: set --topology or --devices to at least one device, and to more than "
                f"{GPUS_OF_A_NODE} GPUs in multiples of {GPUS_OF_A_NODE}"
            )

    @property
    def size(self) -> int:
        """Number of devices."""
        return self.slices * math.prod(self.shape)

    def __str__(self):
        """Returns the name that `topology_named` reads."""
        times = f"{self.slices}x" if self.slices > 1 else ""
        return f"{times}{self.chip.name.lower()}:{'x'.join(map(str, self.shape))}"


def topology_named(name: str) -> Topology:
    """Returns the topology of a name such as `v5e:4x4`, `2xv5p:4x4x4` (two slices) or `h200:8`."""
    match = NAME.fullmatch(name)
    if not match:
        raise EndxError(f"--topology={name} is no topology; give one such as v5e:4x4, v5p:4x4x4, 2xv6e:8x8 or h200:8")
    slices, chip, shape = int(match[1] or 1), chip_named(match[2], "--topology"), tuple(map(int, match[3].split("x")))
    dimensions = TORUS.get(chip.name, 1 if chip.platform == "gpu" else len(shape))
    if len(shape) != dimensions or (chip.platform == "gpu" and slices > 1):
        example = topology_of(chip, 8)
        raise EndxError(f"--topology={name} has {len(shape)} dimensions; {chip.name} takes names such as {example}")
    return Topology(chip, shape, slices)


def topology_of(chip: Chip, count: int) -> Topology:
    """Returns Cloud TPU's slice with a number of chips, or a node with a number of GPUs."""
    if chip.platform == "gpu":
        return Topology(chip, (count,))
    doublings = count.bit_length() - 1
    if count != 1 << doublings:
        raise EndxError(f"there is no slice of {count} {chip.name}; --devices must be a power of two")
    dimensions = TORUS.get(chip.name, 3)
    shape = tuple(1 << (doublings + n) // dimensions for n in range(dimensions))
    if dimensions == 3 and shape[0] == 1:  # a single host's chips are two-dimensional
        shape = (*shape[1:], 1)
    return Topology(chip, shape)


def missing_compiler(chip: Chip) -> str:
    """Returns how to install the compiler for a chip; empty if it is installed."""
    if chip.platform == "gpu":
        if chip.name not in GPUS:
            return "it has no bfloat16: set model.dtype=float32 there"
        # JAX asks cuDNN for its version where it traces its attention.
        has_cudnn = _is_installed("nvidia.cudnn") or ctypes.util.find_library("cudnn")
        if has_cudnn and any(_is_installed(f"jax_plugins.xla_cuda{n}") for n in (12, 13)):
            return ""
        return f"install the extra compile-gpu ({install('compile-gpu')}) to compile for it"
    if chip.name not in TORUS:
        return f"its compiler does not know a {chip.name} chip as one device"
    if importlib.util.find_spec("libtpu"):
        return ""
    return f"install the extra compile-tpu ({install('compile-tpu')}) to compile for it"


def devices_of(topology: Topology) -> list[jax.Device]:
    """Returns devices to lower and compile programs for; they can't run anything."""
    chip, why = topology.chip, missing_compiler(topology.chip)
    if why:
        raise EndxError(f"{chip.name}: {why}")
    try:
        if chip.platform == "gpu":
            hosts, gpus = -(-topology.size // GPUS_OF_A_NODE), min(topology.size, GPUS_OF_A_NODE)
            return topologies.get_topology_desc(
                chip.name.lower(), "cuda", topology=f"1x{hosts}x{gpus}", target_config=_target_config(chip)
            ).devices
        return _tpu_devices(topology)
    except (jax.errors.JaxRuntimeError, RuntimeError) as refused:
        raise EndxError(f"the compiler refuses --topology={topology}: {first_line(refused)}") from None


def _tpu_devices(topology: Topology) -> list[jax.Device]:
    count = math.prod(topology.shape)
    # libtpu requests unset variables from the cloud's metadata server.
    accelerator = ACCELERATORS[topology.chip.name].format(count, 2 * count)
    told = {"TPU_SKIP_MDS_QUERY": "1", "TPU_ACCELERATOR_TYPE": accelerator, "TPU_WORKER_HOSTNAMES": "localhost"}
    for name, value in {**told, "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}.items():
        os.environ.setdefault(name, value)
    shape = "x".join(map(str, topology.shape))
    options: dict = {"num_slices": topology.slices} if topology.slices > 1 else {}
    if count < 4:  # than a host has
        options["chips_per_host_bounds"] = (*topology.shape, 1)[:3]
    return topologies.get_topology_desc(f"{topology.chip.name}:{shape}", "tpu", **options).devices


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package that it would be in
        return False


def _target_config(chip: Chip) -> str:
    """Returns the properties of a GPU that XLA needs, as the text of a `GpuTargetConfigProto`."""
    properties = GPUS[chip.name] | {"memory_bandwidth": int(chip.bandwidth), "device_memory_size": chip.memory}
    fields = "\n".join(
        f"  {name} {value}" if str(value).startswith("{") else f"  {name}: {value}"
        for name, value in properties.items()
    )
    return (
        f"gpu_device_info {{\n{fields}\n}}\n"
        'platform_name: "CUDA"\n'
        "dnn_version_info { major: 9 minor: 10 patch: 0 }\n"
        f'device_description_str: "NVIDIA {chip.name}"\n'
    )
