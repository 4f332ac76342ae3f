"""Environment of a process: variables of launchers and schedulers, compilation cache, versions and hardware."""

import contextlib
import dataclasses
import functools
import importlib.metadata
import importlib.util
import logging
import math
import os
import pathlib
import platform
import re
import subprocess
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
from etils import epath

from endx_jax.buckets import url_of
from endx_jax.errors import EndxError, RunInterrupted
from endx_jax.files import cache_folder

# Default folder of the cache of compiled programs.
PROGRAMS = "~/.cache/endx_jax/xla"

COORDINATOR, COUNT, INDEX = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"
PORT = "JAX_COORDINATOR_PORT"
ADDRESS_SECONDS = 300  # maximum wait for the address of the first host of a TPU pod

# Variables of a SLURM step, as `srun` starts it. A batch script outside of a step is a single process.
SLURM_JOB, SLURM_NODES = "SLURM_JOB_ID", "SLURM_STEP_NODELIST"
SLURM_COUNT, SLURM_INDEX = "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"


@dataclasses.dataclass(frozen=True)
class DistributedConfig:
    """Arguments of `jax.distributed.initialize`.

    Attributes:
      coordinator_address: host and port at which process 0 listens, as HOST:PORT.
      num_processes: number of processes.
      process_id: index of this process, from 0.
    """

    coordinator_address: str
    num_processes: int
    process_id: int

    def __post_init__(self):
        if not 0 <= self.process_id < self.num_processes:
            own = f"the process id is {self.process_id}"
            raise EndxError(f"{own} and there are {self.num_processes} processes: ids begin at 0")
        port = re.search(r":(\d{1,5})$", self.coordinator_address)
        if not (port and int(port[1]) < 65_536):
            reason = "has no port below 65,536: use HOST:PORT"
            raise EndxError(f"the address of process 0 is {self.coordinator_address!r}, which {reason}")


def read_environment() -> DistributedConfig | None:
    """Reads JAX's own variables, those of a SLURM step, or those of a TPU pod, in this order.

    Returns:
      The configuration; None if this is the only process.
    """
    config = _from_jax() or _from_slurm() or _from_tpu_pod()
    return config if config and config.num_processes > 1 else None


def _from_jax() -> DistributedConfig | None:
    if COORDINATOR not in os.environ:
        return None
    try:
        return DistributedConfig(os.environ[COORDINATOR], int(os.environ[COUNT]), int(os.environ[INDEX]))
    except (KeyError, ValueError) as failure:
        if isinstance(failure, EndxError):
            raise
        raise EndxError(f"{COORDINATOR} is set, so {COUNT} and {INDEX} must be set to integers too") from None


def _from_slurm() -> DistributedConfig | None:
    if not all(name in os.environ for name in (SLURM_JOB, SLURM_NODES, SLURM_COUNT, SLURM_INDEX)):
        return None
    nodes = os.environ[SLURM_NODES]
    # Every process derives the same port from the job id, so that jobs on one node have different ports. The last
    # 4,096 ports are above those that Linux assigns.
    port = os.environ.get(PORT) or str(61440 + int(os.environ[SLURM_JOB]) % 4096)
    address = f"{first_node(nodes)}:{port}"
    return DistributedConfig(address, int(os.environ[SLURM_COUNT]), int(os.environ[SLURM_INDEX]))


def first_node(nodes: str) -> str:
    """Returns the first name of a SLURM node list, such as `a08` for `a[08-10,12],b`."""
    first_of_each_range = re.sub(r"\[(\d+)[^\]]*\]", r"\1", nodes)
    return first_of_each_range.partition(",")[0]


def _from_tpu_pod() -> DistributedConfig | None:
    """Reads the hosts of one or several Cloud TPU slices, on virtual machines and on GKE."""
    # These are the private classes that `jax.distributed.initialize` uses when it is called without arguments. A single
    # host must not wait for others, and JAX has no public function that returns the number of hosts.
    try:
        from jax._src.clusters import GceTpuCluster, GkeTpuCluster
    except ImportError:
        if importlib.util.find_spec("libtpu") is None or "tpu" not in (os.environ.get("JAX_PLATFORMS") or "tpu"):
            return None
        raise EndxError(
            f"this JAX does not tell how many hosts a TPU has: set {COORDINATOR} (HOST:PORT of the first), {COUNT} "
            f"and {INDEX} on each host (localhost:8482, 1 and 0 if there is one), or JAX_PLATFORMS=cpu without a TPU"
        ) from None

    for cluster in (GkeTpuCluster, GceTpuCluster):
        if not cluster.is_env_present():
            continue
        try:
            address = cluster.get_coordinator_address(ADDRESS_SECONDS, os.environ.get(PORT))
        except RuntimeError as failure:
            waited = f"after {ADDRESS_SECONDS} s"
            raise RunInterrupted(f"the first host of the TPU pod has no address {waited}: {failure}") from None
        return DistributedConfig(address, cluster.get_process_count(), cluster.get_process_id())
    return None


# Settings of JAX, most of them for debugging, with which all programs fail, and those with which training fails.
FAILING = "jax_debug_infs=True jax_transfer_guard=disallow jax_transfer_guard_host_to_device=disallow "
OF_TRAINING = "jax_enable_x64=True jax_numpy_dtype_promotion=strict jax_disable_jit=True jax_check_tracer_leaks=True"


def check_flags(*, training: bool = False) -> None:
    """Raises EndxError, before anything is compiled, if JAX has a setting with which it would fail."""
    for setting in (FAILING + OF_TRAINING * training).split():
        name, value = setting.split("=")
        if str(getattr(jax.config, name)).startswith(value):
            raise EndxError(f"JAX is set to {setting}, with which this fails: unset {name.upper()}")


def use_compilation_cache(folder: str, least_seconds: float = 1.0) -> None:
    """Caches programs that took `least_seconds` or more to compile in `folder`; if empty, JAX's settings are kept.

    Damaged entries of the folder are replaced.
    """
    place = folder and (url_of(folder) or str(cache_folder(folder)))
    if place == os.devnull:
        logging.getLogger(__name__).warning("no home folder is known: nothing is cached; set HOME or XDG_CACHE_HOME")
    elif place:
        jax.config.update("jax_compilation_cache_dir", place)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", least_seconds)
    if getattr(warnings.showwarning, "func", None) is not _replace_damaged:
        warnings.showwarning = functools.partial(_replace_damaged, warnings.showwarning)


def keep_programs(least_seconds: float = 0.0) -> None:
    """Caches programs as `use_compilation_cache` does in training's default folder, for encoding's many small programs.

    If a cache is configured already, such as by `JAX_COMPILATION_CACHE_DIR`, it is used as it is.
    """
    jax.local_devices()  # raises errors about the platform before any work
    use_compilation_cache("" if jax.config.values["jax_compilation_cache_dir"] else PROGRAMS, least_seconds)


def _replace_damaged(show: Callable[..., None], message: Warning | str, *args: Any, **options: Any) -> None:
    """Shows a warning by `show`, or removes cache entries that JAX can't read, since it overwrites no entries."""
    if named := re.match(r"Error reading persistent compilation cache entry for '([\w.-]+)'", str(message)):
        with contextlib.suppress(OSError):  # the folder can't be written
            for entry in epath.Path(jax.config.values["jax_compilation_cache_dir"]).glob(f"{named[1]}-*"):
                entry.unlink(missing_ok=True)
            return
    show(message, *args, **options)


# Packages whose versions can affect results.
PACKAGES = ("endx_jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy", "tokenizers")


@functools.cache
def environment() -> dict:
    """Returns versions of Python and packages, commit of the code (empty if not a checkout), and hardware."""
    devices = jax.devices()
    return {
        "commit": _commit(pathlib.Path(__file__)),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "system": platform.platform(),
        "processor": processor(),
        "cores": cores(),
        "devices": {"kind": devices[0].device_kind, "count": len(devices), "processes": jax.process_count()},
    }


def _version(package: str) -> str:
    """Returns the installed version; empty if the package is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _commit(file: pathlib.Path) -> str:
    """Returns the checked-out commit of a file, followed by `+` if files are modified; empty if not a checkout."""
    try:
        run = functools.partial(subprocess.run, cwd=file.parent, capture_output=True, text=True, check=True, timeout=10)
        run(["git", "ls-files", "--error-unmatch", file.name])  # fails for an installation inside another project
        modified = run(["git", "status", "--porcelain", "--untracked-files=no"]).stdout.strip()
        return run(["git", "rev-parse", "HEAD"]).stdout.strip() + ("+" if modified else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def processor() -> str:
    """Returns the model name of this machine's processor."""
    lines = read_system("/proc/cpuinfo").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def cores(root: pathlib.Path = pathlib.Path("/")) -> int:
    """Returns the number of CPU cores that this process may use, by its affinity and its control groups' quotas."""
    counts = [len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1]
    for folder in control_groups(root, "cpu"):
        stated = " ".join(read_system(folder / name) for name in ("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us"))
        if limit := re.fullmatch(r"\s*(\d+)\s+(\d+)\s*", stated):  # a quota and its period; `max` or -1: no quota
            counts.append(math.ceil(int(limit[1]) / int(limit[2])))
    return min(counts)


def control_groups(root: pathlib.Path, controller: str) -> Iterator[pathlib.Path]:
    """Yields the folders of this process's control groups (v1 and v2) with a controller, and of those above them."""
    for line in read_system(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            base = root / "sys/fs/cgroup" / (controller if controllers else "")
            # In a container, the path may be that of the host, and only the mounted root of it is visible.
            group = base / path.lstrip("/")
            yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(base))


def read_system(file: str | os.PathLike) -> str:
    """Returns the text of a file such as `/proc/meminfo`; empty if the system does not have it."""
    try:
        return pathlib.Path(file).read_text(encoding="utf-8")
    except OSError:
        return ""


# XLA reads `NPROC` when a device is first used; without it, it starts threads for all CPUs of the machine.
if cores() < cores(pathlib.Path(os.devnull)):
    os.environ.setdefault("NPROC", str(cores()))
