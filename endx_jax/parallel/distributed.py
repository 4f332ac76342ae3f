"""Several processes: set up from the environment, and the few things that they agree on outside the step."""

import os
from collections.abc import Callable

import jax
import numpy as np

from endx_jax.errors import EndxError

COORDINATOR, COUNT, INDEX = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"


def initialize() -> None:
    """Joins the other processes when the environment says that there are any; call before anything touches a device.

    Raises:
      EndxError: when the coordinator is named but not how many processes there are and which is this one.
    """
    if COORDINATOR not in os.environ or jax.distributed.is_initialized():
        return
    try:
        count, index = int(os.environ[COUNT]), int(os.environ[INDEX])
    except (KeyError, ValueError):
        raise EndxError(f"{COORDINATOR} is set, so {COUNT} and {INDEX} must be set to whole numbers too") from None
    jax.distributed.initialize(os.environ[COORDINATOR], num_processes=count, process_id=index)


def is_primary() -> bool:
    """Whether this process is the one that prints and writes."""
    return jax.process_index() == 0


def on_primary(action: Callable[[], None], name: str) -> None:
    """Runs `action` on the primary process while the others wait for it; `name` identifies the meeting point."""
    if is_primary():
        action()
    barrier(name)


def everywhere(holds: bool) -> bool:
    """Whether something holds on every process; each has to ask."""
    if jax.process_count() == 1:
        return holds
    from jax.experimental import multihost_utils

    return bool(np.all(multihost_utils.process_allgather(np.array(holds))))


def barrier(name: str) -> None:
    """Waits until every process has come here."""
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(name)
