"""Three real processes that meet in collectives, one of which is killed or stopped: JAX aborts the others."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import pytest

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
    ("victim", "number"), [(2, signal.SIGKILL), (0, signal.SIGKILL), (1, signal.SIGSTOP)], ids=["2", "0", "1, stopped"]
)
def test_the_others_are_aborted_which_launchers_restart(processes, victim, number):
    processes[victim].send_signal(number)
    for index, process in enumerate(processes):
        if index == victim:
            continue
        _, errors = process.communicate(timeout=60)
        assert process.returncode == -signal.SIGABRT  # 134 in a shell
        assert "Terminating process because the JAX distributed service detected fatal errors" in errors
