"""Reads this process's place among several from the variables that launchers and schedulers set."""

import dataclasses
import os
import re

from endx_jax.errors import EndxError, RunInterrupted

COORDINATOR, COUNT, INDEX = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"
PORT = "JAX_COORDINATOR_PORT"
ADDRESS_SECONDS = 300  # that the first host of a TPU pod has to get an address

# Of a step of SLURM's, such as `srun` starts; a batch script outside of one is a process by itself.
SLURM_JOB, SLURM_NODES, SLURM_COUNT, SLURM_INDEX = (
    "SLURM_JOB_ID",
    "SLURM_STEP_NODELIST",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_PROCID",
)


@dataclasses.dataclass(frozen=True)
class Place:
    """Place of one process among several.

    Attributes:
      address: host and port at which process 0 listens.
      count: number of processes.
      index: number of this process, from 0.
    """

    address: str
    count: int
    index: int

    def __post_init__(self):
        if not 0 <= self.index < self.count:
            raise EndxError(f"this is process {self.index} of {self.count}: the first is 0, the last {self.count - 1}")
        if not re.search(r":\d+$", self.address):
            raise EndxError(f"process 0 is to listen at {self.address!r}, which has no port: give it as HOST:PORT")


def find_place() -> Place | None:
    """Reads JAX's own variables, then those of a SLURM step, then those of a TPU pod.

    Returns:
      The place; None where this is the only process.

    Raises:
      EndxError: the variables are incomplete or contradict each other.
      RunInterrupted: the first host of a TPU pod has no address yet.
    """
    place = _from_jax() or _from_slurm() or _from_tpu_pod()
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
    nodes = os.environ[SLURM_NODES]
    # Every process derives the same port from the job's number, so that jobs on one node have different ports. The last
    # 4,096 ports are above those that Linux assigns.
    port = os.environ.get(PORT) or str(61440 + int(os.environ[SLURM_JOB]) % 4096)
    return Place(f"{first_node(nodes)}:{port}", int(os.environ[SLURM_COUNT]), int(os.environ[SLURM_INDEX]))


def first_node(nodes: str) -> str:
    """Returns the first name in a SLURM node list: `a08` of `a[08-10,12],b`."""
    first_of_each_range = re.sub(r"\[(\d+)[^\]]*\]", r"\1", nodes)
    return first_of_each_range.partition(",")[0]


def _from_tpu_pod() -> Place | None:
    """Reads the hosts of one or several Cloud TPU slices, on virtual machines and on GKE."""
    # `jax.distributed.initialize` asks these private classes when it is called without arguments. A single host must
    # not wait for others, and JAX has no public way to tell beforehand.
    from jax._src.clusters import GceTpuCluster, GkeTpuCluster

    for cluster in (GkeTpuCluster, GceTpuCluster):
        if not cluster.is_env_present():
            continue
        try:
            address = cluster.get_coordinator_address(ADDRESS_SECONDS, os.environ.get(PORT))
        except RuntimeError as failure:
            raise RunInterrupted(
                f"the first host of the TPU pod has no address after {ADDRESS_SECONDS} s: {failure}"
            ) from None
        return Place(address, cluster.get_process_count(), cluster.get_process_id())
    return None
