import socket

import jax
import jax.numpy as jnp
import pytest
from fake_buckets import free_port
from helpers import raising
from jax.profiler import ProfileData
from refusals import check_refusal
from several_processes import as_processes

from endx_jax.training import hooks
from endx_jax.training.hooks import WARM_UP, Trace

pytestmark = pytest.mark.filterwarnings("ignore:builtin type .* has no __module__:DeprecationWarning")  # of ProfileData


def run_steps(trace, start, stop):
    for step in range(start, stop):
        with trace.step(step):
            done = jnp.ones(())
        trace.end_step(step + 1, done)


def recorded(folder) -> list[int]:
    """The numbers of the steps in the trace of a folder."""
    (file,) = folder.rglob("*.xplane.pb")
    lines = [line for plane in ProfileData.from_file(str(file)).planes for line in plane.lines]
    return [dict(event.stats)["step_num"] for line in lines for event in line.events if event.name == "train"]


@pytest.mark.parametrize("start", [0, 7])
def test_the_steps_after_warm_up_are_recorded_and_no_more(tmp_path, start):
    trace, first = Trace(tmp_path, start=start, steps=3), start + WARM_UP
    run_steps(trace, start, first + 5)
    assert recorded(tmp_path) == [first, first + 1, first + 2]
    trace.close()
    assert recorded(tmp_path) == [first, first + 1, first + 2]


def test_training_that_ends_early_leaves_what_there_is(tmp_path):
    trace = Trace(tmp_path, start=0, steps=3)
    run_steps(trace, 0, WARM_UP + 1)
    assert [*tmp_path.rglob("*.pb")] == []
    trace.close()
    trace.close()
    assert recorded(tmp_path) == [WARM_UP]


def test_tensorboard_can_connect_to_the_profiler_s_server_until_training_ends(tmp_path):
    port = free_port()
    for _ in range(2):  # one run after another in a process
        trace = Trace(tmp_path, start=0, steps=0, port=port)
        socket.create_connection(("localhost", port), timeout=5).close()
        trace.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("localhost", port), timeout=5)


def test_each_of_several_processes_has_its_own_folder(tmp_path, monkeypatch):
    def run(process):
        trace = Trace(tmp_path, start=0, steps=1)
        if process == 1:  # one at a time may trace in this process
            run_steps(trace, 0, WARM_UP + 1)

    as_processes(monkeypatch, run)
    assert recorded(tmp_path / "process-1") == [WARM_UP]


def test_each_process_of_a_host_has_its_own_port_up_to_the_largest(tmp_path, monkeypatch):
    hosts, ports = "abaa", []
    monkeypatch.setattr(hooks.socket, "gethostname", lambda: hosts[jax.process_index()])
    monkeypatch.setattr(hooks.jax.profiler, "start_server", ports.append)
    *_, refused = as_processes(monkeypatch, lambda _: Trace(tmp_path, start=0, steps=0, port=65534), len(hosts))
    assert sorted(ports) == [65534, 65534, 65535]
    check_refusal(raising(refused), "train.profiler_port", "65536", "65,535")


@pytest.mark.parametrize(
    ("size", "expected"), [(3, [0, "start", 3, "stop", 6, 9]), (8, [0, "start", 8, "stop", 16, 24])]
)
def test_a_trace_has_the_first_calls_after_warm_up(tmp_path, monkeypatch, size, expected):
    events = []
    monkeypatch.setattr(jax.profiler, "start_trace", lambda folder: events.append("start"))
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: events.append("stop"))
    trace = Trace(tmp_path, start=0, steps=3)
    for first in range(0, 4 * size, size):
        with trace.step(first):
            events.append(first)
        trace.end_step(first + size, jnp.zeros(()))
    assert events == expected
    trace.close()
