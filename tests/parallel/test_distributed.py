import os
import socket
import subprocess
import sys
import textwrap

import pytest
from helpers import one_line_error

from endx_jax.errors import EndxError, RunInterrupted
from endx_jax.parallel import distributed, environment


def test_without_a_coordinator_nothing_is_set_up(monkeypatch):
    monkeypatch.delenv(environment.COORDINATOR, raising=False)
    distributed.initialize()
    assert distributed.is_primary()


def test_a_port_that_is_taken_is_refused(monkeypatch):
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv(environment.COORDINATOR, f"localhost:{port}")
        monkeypatch.setenv(environment.COUNT, "2")
        monkeypatch.setenv(environment.INDEX, "0")
        with one_line_error(rf"process 0 can't listen on port {port} \(Address already in use\): another run may"):
            distributed.initialize()


def test_on_primary_runs_the_action():
    ran = []
    distributed.on_primary(lambda: ran.append(True), "test")
    assert ran == [True]


@pytest.mark.parametrize("failure", [EndxError("the disk is full: ä"), RunInterrupted("told to stop")])
def test_errors_of_the_primary_are_raised_by_all(monkeypatch, failure):
    """The words travel as bytes of an array: here from the primary to itself, then as another process sees them."""
    from jax.experimental import multihost_utils

    def fail():
        raise failure

    sent = []
    monkeypatch.setattr(distributed.jax, "process_count", lambda: 2)
    monkeypatch.setattr(distributed, "barrier", lambda name: None)
    monkeypatch.setattr(multihost_utils, "broadcast_one_to_all", lambda array: sent.append(array) or array)
    with pytest.raises(type(failure), match=str(failure)):
        distributed.on_primary(fail, "test")
    monkeypatch.setattr(distributed, "is_primary", lambda: False)
    monkeypatch.setattr(multihost_utils, "broadcast_one_to_all", lambda array: sent[0])
    with pytest.raises(type(failure), match=f"^{failure}$"):
        distributed.on_primary(lambda: pytest.fail("this is not the primary"), "test")


@pytest.mark.slow
def test_a_mistake_of_one_process_ends_all_at_once_with_its_status():
    """Two real processes: nobody waits at JAX's exit for one that waits in a collective."""
    program = """
        import sys
        from endx_jax.cli import entry, train
        from endx_jax.errors import EndxError
        from endx_jax.parallel import distributed
        def main(arguments):
            distributed.initialize()
            def refuse():
                raise EndxError("no room")
            distributed.on_primary(refuse, "refused")
        train.main = main
        sys.exit(entry.run_verb(["train"]))
    """
    with socket.create_server(("localhost", 0)) as probe:
        address = f"localhost:{probe.getsockname()[1]}"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program)],
            env=os.environ
            | {"JAX_PLATFORMS": "cpu", environment.COORDINATOR: address}
            | {environment.COUNT: "2", environment.INDEX: str(index)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    errors = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [2, 2]
    assert [error.splitlines()[-1] for error in errors] == ["endx train: no room"] * 2


@pytest.mark.slow
def test_rows_of_a_process_need_not_be_consecutive():
    """Two real processes, whose devices alternate in the mesh, as hosts of a TPU slice do."""
    program = """
        import jax
        import numpy as np
        from jax.experimental import multihost_utils
        from jax.sharding import Mesh
        from endx_jax.parallel import distributed, local_rows, to_global
        distributed.initialize()
        devices = sorted(jax.devices(), key=lambda device: (device.id % 2, device.process_index))
        mesh = Mesh(np.reshape(devices, (4, 1, 1)), ("data", "fsdp", "tensor"))
        rows, batch = local_rows(mesh, 8), 3 * np.arange(8)
        assert rows.tolist() == ([0, 1, 4, 5], [2, 3, 6, 7])[jax.process_index()], rows
        whole = multihost_utils.process_allgather(to_global(batch[rows], mesh, 8), tiled=True)
        np.testing.assert_array_equal(whole, batch)
    """
    with socket.create_server(("localhost", 0)) as probe:
        address = f"localhost:{probe.getsockname()[1]}"
    settings = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "2"}
    settings |= {environment.COORDINATOR: address, environment.COUNT: "2"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program)], env=settings | {environment.INDEX: str(index)}
        )
        for index in range(2)
    ]
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
