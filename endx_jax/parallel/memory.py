"""Memory that is available to this process and to a training step."""

import ctypes
import dataclasses
import math
import os
import pathlib
import socket
import sys
from collections.abc import Callable, Iterator

import jax

from endx_jax.parallel.agreement import all_gather
from endx_jax.parallel.environment import control_groups, read_system
from endx_jax.parallel.execution import Tree

UNKNOWN = 16 * 2**30  # bytes; assumed if neither the device nor the system reports its memory
# Share of the memory for a training step: a CPU's is shared with other programs.
SHARES, ACCELERATOR_SHARE = {"cpu": 0.5}, 0.85
RUNTIME = 400 * 2**20  # bytes of a CPU process besides its arrays while it compiles and trains (docs/performance.md)


@dataclasses.dataclass(frozen=True)
class DeviceMemory:
    """Memory of one device, or on a CPU this process's share of the host's memory.

    Attributes:
      total: bytes that this process may use, including `held`.
      held: bytes that it uses already.
      devices: number of local devices that share the memory.
    """

    total: int
    held: int = 0
    devices: int = 1

    def peak(self, step: int) -> int:
        """Returns the held memory plus `step` bytes for every local device."""
        return self.held + self.devices * step

    def activations(self, state: int, platform: str = "cpu") -> int:
        """Returns the bytes for the activations of one device beside `state` bytes of parameters and optimizer state.

        State and activations together use at most the share `SHARES` of the memory. If the state alone uses more than
        that, activations use at most half of the rest.
        """
        used = self.peak(state)
        left = int(self.total * SHARES.get(platform, ACCELERATOR_SHARE)) - used
        return (left if left > 0 else max(0, self.total - used) // 2) // self.devices


def measure() -> DeviceMemory:
    """Measures the memory of the local devices; returns the minimum over all processes on each of them."""
    devices = jax.local_devices()
    stats = devices[0].memory_stats() or {}
    if "bytes_limit" in stats:
        memory = DeviceMemory(stats["bytes_limit"], stats.get("bytes_in_use", 0))
    else:
        held = resident()
        memory = DeviceMemory(host_memory()[1] + held, held + RUNTIME, len(devices))
    everyone: list = all_gather([memory.total, memory.held, socket.gethostname()], "memory")
    hosts = [host for _, _, host in everyone]
    # Processes on one host see the same free memory; each uses an equal share.
    shares = [total // (1 if "bytes_limit" in stats else hosts.count(host)) for total, _, host in everyone]
    return DeviceMemory(min(shares), max(held for _, held, _ in everyone), memory.devices)


def host_memory(root: pathlib.Path = pathlib.Path("/")) -> tuple[int, int]:
    """Returns the bytes of total and free memory of the host, each at most what this process's control groups allow.

    Both are `UNKNOWN` if the system has no `/proc/meminfo`, as outside Linux. `proc` and `sys` are mounted in `root`.
    """
    lines = dict(line.split(":") for line in read_system(root / "proc/meminfo").splitlines())
    if "MemAvailable" not in lines:
        return UNKNOWN, UNKNOWN
    of_host = [1024 * int(lines[name].split()[0]) for name in ("MemTotal", "MemAvailable")]
    total, free = zip(of_host, *_cgroup_memory(root), strict=True)
    return min(total), max(0, min(free))


def resident() -> int:
    """Returns the resident memory of this process in bytes; 0 if the system does not report it."""
    fields = read_system("/proc/self/statm").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if fields else 0


def trim() -> None:
    """Gives freed memory that glibc keeps, such as the compiler's, back to the system; no effect without glibc."""
    if sys.platform == "linux":
        release = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if release:
            release(0)


def gigabytes(count: int) -> str:
    """Formats bytes as GB with one decimal."""
    return f"{count / 1e9:.1f} GB"


def bytes_held(tree: Tree) -> int:
    """Returns the bytes of a tree of arrays, or of shapes with shardings, on one device."""
    return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def bytes_kept(function: Callable[[Tree, Tree], Tree], params: Tree, rows: Tree) -> int:
    """Returns the bytes that a forward pass keeps for the backward pass, from shapes only.

    Parameters, which have a gradient, are included if the backward pass reads them; gradients are not.
    """
    pull = jax.eval_shape(lambda p, r: jax.vjp(lambda p: function(p, r), p)[1], params, rows)
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(pull))


def _cgroup_memory(root: pathlib.Path) -> Iterator[tuple[int, int]]:
    """Yields each limit and what it leaves, for this process's control group and those above it (v1 and v2)."""
    for folder in control_groups(root, "memory"):
        for names in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit, used = read_system(folder / names[0]).strip(), read_system(folder / names[1]).strip()
            if limit.isdigit() and used.isdigit():
                # The system drops cached files before it runs out of memory.
                statistics = dict(entry.split() for entry in read_system(folder / "memory.stat").splitlines())
                yield int(limit), int(limit) - int(used) + int(statistics.get(names[2], 0))
