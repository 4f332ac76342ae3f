"""Which of several processes this one is, from what launchers and schedulers leave in the environment."""

import dataclasses
import os
import re

from endx_jax.errors import EndxError, RunInterrupted

COORDINATOR, COUNT, INDEX = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"
PORT = "JAX_COORDINATOR_PORT"

# Of a step of SLURM's, such as `srun` starts; a batch script outside of one is a process by itself.
SLURM_JOB, SLURM_NODES, SLURM_COUNT, SLURM_INDEX = (
    "SLURM_JOB_ID",
    "SLURM_STEP_NODELIST",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_PROCID",
)


@dataclasses.dataclass(frozen=True)
class Place:
    """One of several processes.

    Attributes:
      address: host and port at which process 0 listens.
      count: how many processes there are.
      index: which of them this is, from 0.
      hosts: the names of all processes' hosts, in order; empty where only they know them.
    """

    address: str
    count: int
    index: int
    hosts: tuple[str, ...] = ()

    def __post_init__(self):
        if not 0 <= self.index < self.count:
            raise EndxError(f"this is process {self.index} of {self.count}: the first is 0, the last {self.count - 1}")
        if not re.search(r":\d+$", self.address):
            raise EndxError(f"process 0 is to listen at {self.address!r}, which has no port: give it as HOST:PORT")


def find_place(timeout: float) -> Place | None:
    """Looks for JAX's own variables, then for a step of SLURM's, then for the hosts of a TPU pod.

    Args:
      timeout: seconds that the name of a pod's first host may take to be known.

    Returns:
      The place; None where nothing speaks of several processes.

    Raises:
      EndxError: when the variables are incomplete or contradict each other.
    """
    place = _from_jax() or _from_slurm() or _from_tpu_pod(timeout)
    return place if place and place.count > 1 else None


def _from_jax() -> Place | None:
    if COORDINATOR not in os.environ:
        return None
    try:
        return Place(os.environ[COORDINATOR], int(os.environ[COUNT]), int(os.environ[INDEX]))
    except (KeyError, ValueError) as failure:
        if isinstance(failure, EndxError):
            raise
        raise EndxError(f"{COORDINATOR} is set, so {COUNT} and {INDEX} must be set to whole numbers too") from None


def _from_slurm() -> Place | None:
    if not all(name in os.environ for name in (SLURM_JOB, SLURM_NODES, SLURM_COUNT, SLURM_INDEX)):
        return None
    nodes, count = expand_nodes(os.environ[SLURM_NODES]), int(os.environ[SLURM_COUNT])
    # Every process works the port out by itself; jobs that share a node must not share it. These ports, the last 4,096,
    # are above those that Linux gives away.
    port = os.environ.get(PORT) or str(61440 + int(os.environ[SLURM_JOB]) % 4096)
    hosts = tuple(nodes) if len(nodes) == count else ()
    return Place(f"{nodes[0]}:{port}", count, int(os.environ[SLURM_INDEX]), hosts)


def expand_nodes(nodes: str) -> list[str]:
    """The names in a list of SLURM's: `a[08-10,12],b` is a08, a09, a10, a12 and b."""
    names = []
    for prefix, ranges, suffix in re.findall(r"([^,\[\]]+)(?:\[([^\]]*)\])?([^,\[\]]*)", nodes):
        for part in ranges.split(",") if ranges else [""]:
            first, _, last = part.partition("-")
            numbers = range(int(first), int(last or first) + 1) if first else [""]
            names += [f"{prefix}{number:0{len(first)}d}{suffix}" if first else prefix + suffix for number in numbers]
    return names


def _from_tpu_pod(timeout: float) -> Place | None:
    """The hosts of a Cloud TPU slice, or of several, on virtual machines and on GKE."""
    # JAX asks the metadata server, or GKE's variables, when `jax.distributed.initialize` is called without arguments.
    # It has no public way to ask the same beforehand, which naming the missing takes: so these classes are its private.
    from jax._src.clusters import GceTpuCluster, GkeTpuCluster

    for cluster in (GkeTpuCluster, GceTpuCluster):
        if not cluster.is_env_present():
            continue
        try:
            address = cluster.get_coordinator_address(int(timeout), os.environ.get(PORT))
        except RuntimeError as failure:
            raise RunInterrupted(
                f"the first host of the TPU pod has no address after {timeout:.0f} s: {failure}"
            ) from None
        count = cluster.get_process_count()
        hosts = tuple(filter(None, os.environ.get("TPU_WORKER_HOSTNAMES", "").split(",")))
        return Place(address, count, cluster.get_process_id(), hosts if len(hosts) == count else ())
    return None
