import os

import jax
import jax.numpy as jnp
import pytest

from endx_jax.training import trace as trace_module
from endx_jax.training.trace import WARM_UP, Trace


@pytest.fixture
def calls(monkeypatch):
    """What the profiler is told, instead of profiling."""
    found = []
    monkeypatch.setattr(trace_module.jax.profiler, "start_trace", lambda folder: found.append(("start", folder)))
    monkeypatch.setattr(trace_module.jax.profiler, "stop_trace", lambda: found.append("stop"))
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


@pytest.mark.parametrize(("text", "recorded"), [("2", 2), ("", 5), ("soon", 5)])
def test_a_file_asks_for_a_trace_whenever_it_is_touched(tmp_path, calls, monkeypatch, text, recorded):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    request = tmp_path / "profile-now"
    request.write_text("9")  # an earlier run was asked
    trace = Trace(tmp_path / "profile", start=0, steps=0, request=request)
    now[0] += trace_module.POLL_SECONDS
    run_steps(trace, 0, 3, calls)
    assert calls == [0, 1, 2]
    for later in (1, 2):
        request.write_text(text)
        os.utime(request, ns=(later, later))
        run_steps(trace, 3, 4, calls)  # it was looked at a moment ago
        now[0] += trace_module.POLL_SECONDS
        calls.clear()
        run_steps(trace, 4, 12, calls)
        after = range(4 + recorded, 12)
        assert calls == [("start", str(tmp_path / "profile")), *range(4, 4 + recorded), "stop", *after]


def test_each_of_several_processes_has_its_own_folder(tmp_path, calls, monkeypatch):
    monkeypatch.setattr(trace_module.jax, "process_count", lambda: 2)
    run_steps(Trace(tmp_path, start=0, steps=1), 0, WARM_UP + 1, calls)
    assert ("start", str(tmp_path / "process-0")) in calls


def test_the_trace_names_its_steps(tmp_path):
    trace, double = Trace(tmp_path, start=0, steps=2), jax.jit(lambda x: 2 * x)
    x = jnp.ones(())
    for step in range(WARM_UP + 3):
        with trace.step(step):
            x = double(x)
        trace.end_step(step + 1, x)
    (file,) = tmp_path.rglob("*.xplane.pb")
    assert b"train" in file.read_bytes()
