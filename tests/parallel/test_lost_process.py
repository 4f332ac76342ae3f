"""Three real processes that meet in collectives, one of which is killed or stopped: the others end, to be restarted."""

import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from endx_jax.errors import TRY_AGAIN
from endx_jax.parallel import environment

COUNT = 3
PROGRAM = """
import functools, pathlib, sys
import jax
# JAX's default is 100 seconds.
jax.distributed.initialize = functools.partial(jax.distributed.initialize, heartbeat_timeout_seconds=10)
from endx_jax.cli import entry, train

def main(arguments):
    from endx_jax.parallel import distributed
    distributed.initialize()
    import numpy as np
    from jax.experimental import multihost_utils
    step = 0
    while True:
        multihost_utils.process_allgather(np.array(step))
        step += 1
        (pathlib.Path(arguments[0]) / f"met-{step}").touch()

train.main = main
sys.exit(entry.run_verb(["train", *sys.argv[1:]]))
"""


@pytest.fixture
def processes(tmp_path):
    with socket.create_server(("localhost", 0)) as probe:
        address = f"localhost:{probe.getsockname()[1]}"
    shared = os.environ | {"JAX_PLATFORMS": "cpu", environment.COORDINATOR: address, environment.COUNT: str(COUNT)}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path)],
            env=shared | {environment.INDEX: str(index)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(COUNT)
    ]
    wait_for(tmp_path / "met-20")
    yield started
    for process in started:
        process.kill()
        process.communicate()


def wait_for(file: pathlib.Path):
    deadline = time.monotonic() + 120
    while not file.exists():
        assert time.monotonic() < deadline, f"{file.name} does not come"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "number", "status"),
    [(2, signal.SIGKILL, TRY_AGAIN), (0, signal.SIGKILL, -signal.SIGABRT), (1, signal.SIGSTOP, -signal.SIGABRT)],
    ids=["2", "0", "1, stopped"],
)
def test_the_others_end_with_a_status_that_launchers_restart(processes, victim, number, status):
    """JAX aborts those whose process 0 is gone, or whose peer gives no sign of life (134 in a shell)."""
    line = {
        TRY_AGAIN: r"endx_jax: another process was lost \(.*\); run the same command again|process \d ended: ",
        -signal.SIGABRT: "Terminating process because the JAX distributed service detected fatal errors",
    }
    began = time.monotonic()
    processes[victim].send_signal(number)
    for index, process in enumerate(processes):
        if index == victim:
            continue
        _, errors = process.communicate(timeout=60)
        print(f"process {index} ended with {process.returncode} after {time.monotonic() - began:.1f} s")
        assert process.returncode == status, errors
        assert re.search(line[status], errors), errors
