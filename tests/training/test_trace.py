import socket

import jax
import jax.numpy as jnp
import pytest
from fake_buckets import free_port
from refusals import check_refusal

from endx_jax.training import hooks
from endx_jax.training.hooks import WARM_UP, Trace


@pytest.fixture
def calls(monkeypatch):
    """What the profiler is told, instead of profiling."""
    found = []
    monkeypatch.setattr(hooks.jax.profiler, "start_trace", lambda folder: found.append(("start", folder)))
    monkeypatch.setattr(hooks.jax.profiler, "stop_trace", lambda: found.append("stop"))
    return found


def run_steps(trace, start, stop, calls):
    for step in range(start, stop):
        with trace.step(step):
            calls.append(step)
        trace.end_step(step + 1, jnp.ones(()))


@pytest.mark.parametrize("start", [0, 7])
def test_the_steps_after_warm_up_are_recorded_and_no_more(tmp_path, calls, start):
    trace = Trace(tmp_path, start=start, steps=3)
    run_steps(trace, start, start + WARM_UP + 5, calls)
    trace.close()
    first = start + WARM_UP
    before, recorded, after = range(start, first), range(first, first + 3), range(first + 3, first + 5)
    assert calls == [*before, ("start", str(tmp_path)), *recorded, "stop", *after]


def test_training_that_ends_early_leaves_what_there_is(tmp_path, calls):
    trace = Trace(tmp_path, start=0, steps=3)
    run_steps(trace, 0, WARM_UP + 1, calls)
    trace.close()
    trace.close()
    assert calls == [0, 1, ("start", str(tmp_path)), 2, "stop"]


def test_tensorboard_can_connect_to_the_profiler_s_server_until_training_ends(tmp_path):
    port = free_port()
    for _ in range(2):  # one run after another in a process
        trace = Trace(tmp_path, start=0, steps=0, port=port)
        socket.create_connection(("localhost", port), timeout=5).close()
        trace.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("localhost", port), timeout=5)


def test_each_of_several_processes_has_its_own_folder(tmp_path, calls, monkeypatch):
    monkeypatch.setattr(hooks.jax, "process_count", lambda: 2)
    run_steps(Trace(tmp_path, start=0, steps=1), 0, WARM_UP + 1, calls)
    assert ("start", str(tmp_path / "process-0")) in calls


@pytest.mark.parametrize(
    ("hosts", "process", "port", "found"),
    [("abaa", 0, 65534, [65534]), ("abaa", 1, 65534, [65534]), ("abaa", 2, 65534, [65535]), ("aa", 1, 65535, "65536")],
)
def test_each_process_of_a_host_has_its_own_port_up_to_the_largest(tmp_path, monkeypatch, hosts, process, port, found):
    monkeypatch.setattr(hooks, "all_gather", lambda *_: [*hosts])
    monkeypatch.setattr(hooks.jax, "process_index", lambda: process)
    ports = []
    monkeypatch.setattr(hooks.jax.profiler, "start_server", ports.append)
    if isinstance(found, str):
        check_refusal(lambda: Trace(tmp_path, start=0, steps=0, port=port), "train.profiler_port", found, "65,535")
    else:
        Trace(tmp_path, start=0, steps=0, port=port)
        assert ports == found


def test_the_trace_names_its_steps(tmp_path):
    trace, double = Trace(tmp_path, start=0, steps=2), jax.jit(lambda x: 2 * x)
    x = jnp.ones(())
    for step in range(WARM_UP + 3):
        with trace.step(step):
            x = double(x)
        trace.end_step(step + 1, x)
    (file,) = tmp_path.rglob("*.xplane.pb")
    assert b"train" in file.read_bytes()
