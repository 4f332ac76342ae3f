"""Real processes that meet in collectives: what they agree on, and how they end when one fails or is lost."""

import re
import signal
import socket
import textwrap
import time

import pytest
from helpers import wait_for
from refusals import check_refusal
from several_processes import start_program

from endx_jax.errors import TRY_AGAIN
from endx_jax.parallel import distributed


def test_a_port_that_is_taken_is_refused_and_nothing_is_set_up_without_a_coordinator(variables):
    distributed.initialize()
    assert distributed.is_primary()
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        variables(COORDINATOR=f"localhost:{port}", COUNT="2", INDEX="0")
        check_refusal(distributed.initialize, "process 0", f"port {port}", "choose another")


# What a process does instead of training; the status of both processes, and the end of the last line of each.
ENDINGS = {
    "on_primary(refuse, 'test')": (2, "endx train: no room", "endx train: process 0: no room"),
    "run_on_all(refuse if index else int, 'test')": (2, "endx train: process 1: no room", "endx train: no room"),
    "refuse() if index else all_gather(0, 'test')": (2, "endx_jax: process 1 ended: no room", "endx train: no room"),
    "all_gather(0, 'test') if index else refuse()": (2, "endx train: no room", "endx_jax: process 0 ended: no room"),
    "refuse() if index else gather()": (2, "endx_jax: process 1 ended: no room", "endx train: no room"),
    "1 / 0 if index else gather()": (1, "endx_jax: process 1 ended: division by zero", "division by zero"),
    "distributed.end_together() or 1 / 0": (1, "division by zero", "division by zero"),
    "os.kill(os.getpid(), 9) if index else gather()": (75, "; run the same command again", None),
}


@pytest.mark.slow
@pytest.mark.parametrize("ending", ENDINGS)
def test_the_failure_of_one_process_ends_all_with_its_status_and_its_name(ending):
    program = f"""
        import os, sys
        from endx_jax.cli import entry, train
        from endx_jax.errors import EndxError
        from endx_jax.parallel import distributed
        from endx_jax.parallel.agreement import all_gather, on_primary, run_on_all
        def main(arguments):
            distributed.initialize()
            import jax
            import numpy as np
            from jax.experimental import multihost_utils
            index = jax.process_index()
            gather = lambda: [multihost_utils.process_allgather(np.array(1)) for _ in range(10**6)]
            multihost_utils.process_allgather(np.array(1))
            def refuse():
                raise EndxError("no room")
            {ending}
        train.main = main
        sys.exit(entry.run_verb(["train"]))
    """
    processes = start_program(textwrap.dedent(program))
    errors = [process.communicate(timeout=60)[1].splitlines() for process in processes]
    status, *lines = ENDINGS[ending]
    for process, printed, line in zip(processes, errors, lines, strict=True):
        assert process.returncode == (status if line else -9), printed
        assert line is None or printed[-1].endswith(line), printed


@pytest.mark.slow
def test_rows_of_a_process_need_not_be_consecutive():
    program = """
        import jax
        import numpy as np
        from jax.sharding import Mesh
        from endx_jax.parallel import distributed, local_rows, to_global
        from endx_jax.parallel.sharding import fetch_whole
        distributed.initialize()
        devices = sorted(jax.devices(), key=lambda device: (device.id % 2, device.process_index))
        mesh = Mesh(np.reshape(devices, (4, 1, 1)), ("data", "fsdp", "tensor"))
        rows, batch = local_rows(mesh, 8), 3 * np.arange(8)
        assert rows.tolist() == ([0, 1, 4, 5], [2, 3, 6, 7])[jax.process_index()], rows
        np.testing.assert_array_equal(fetch_whole(to_global(batch[rows], mesh, 8)), batch)
    """
    processes = start_program(textwrap.dedent(program), JAX_NUM_CPU_DEVICES="2")
    errors = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors


MEETING = """
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
    started = start_program(MEETING, str(tmp_path), count=3)
    wait_for((tmp_path / "met-20").exists, 120)
    yield started
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "number", "status"),
    [(2, signal.SIGKILL, TRY_AGAIN), (0, signal.SIGKILL, -signal.SIGABRT), (1, signal.SIGSTOP, -signal.SIGABRT)],
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
