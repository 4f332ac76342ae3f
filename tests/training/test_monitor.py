import json

import jax.numpy as jnp
import numpy as np
import pytest
from refusals import check_refusal

from endx_jax.training.loop import TrainSettings
from endx_jax.training.monitor import Monitor, NonFiniteLoss, Pace


def make_monitor(workdir, log_every=2, **changes):
    arguments = {"start": 0, "steps": 4, "began": 0.0, "example_names": lambda step: [f"q{step}-{i}" for i in range(8)]}
    return Monitor(workdir, TrainSettings(global_batch_size=8, log_every=log_every), **(arguments | changes))


def metrics(loss, gradient_norm=1.0):
    """The metrics of a step, or of the steps of a call with these losses."""
    values = {"loss": loss, "gradient_norm": gradient_norm, "learning_rate": 0.01, "tokens": 100}
    return {name: jnp.broadcast_to(jnp.asarray(value), np.shape(loss)) for name, value in values.items()}


def test_it_logs_every_so_many_steps_with_throughput(tmp_path, capsys):
    monitor = make_monitor(tmp_path)
    for step in (1, 2, 3, 4):
        monitor.push(step, metrics(1 / step))
    monitor.flush()
    monitor.close()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [2, 4]
    assert lines[1]["loss"] == 0.25
    assert lines[1]["pairs_per_second"] > 0
    assert lines[1]["tokens_per_second"] > lines[1]["pairs_per_second"]  # 100 tokens a step against 8 pairs
    assert "step 4/4: loss 0.2500" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("found", "named"),
    [((np.nan, 1.0), "loss is nan"), ((np.inf, 1.0), "loss is inf"), ((1.0, np.nan), "gradient_norm is nan")],
)
def test_a_loss_or_gradient_that_is_not_finite_stops_the_run_with_its_examples(tmp_path, found, named):
    monitor = make_monitor(tmp_path)
    monitor.push(1, metrics(1.0))
    monitor.push(2, metrics(*found))
    check_refusal(lambda: monitor.push(3, metrics(1.0)), named, "step 2", "learning rate 0.01", "q2-0, ", "and 3 more")
    monitor.close()
    report = json.loads((tmp_path / "non_finite_batch.json").read_text())
    assert report["questions"] == [f"q2-{i}" for i in range(8)]


def test_a_warning_is_printed_once_and_again_after_it_was_mended(tmp_path, capsys):
    high = lambda found: {"high": f"high: {found['loss']:.0f}"} if found["loss"] > 5 else {}  # noqa: E731
    monitor = make_monitor(tmp_path, log_every=1, warnings=high)
    for step, loss in enumerate((1.0, 6.0, 7.0, 2.0, 8.0), 1):
        monitor.push(step, metrics(loss))
    monitor.flush()
    monitor.close()
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning")]
    assert said == ["warning: at step 2, high: 6", "warning: at step 5, high: 8"]


class Ready:
    """A step's loss, which the devices have or have not computed yet."""

    def __init__(self, ready):
        self.is_ready = lambda: ready

    def __array__(self, *_, **options):
        return np.float32(1)


@pytest.fixture
def now(monkeypatch):
    """The time, in a list."""
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    return now


def test_pauses_do_not_count_as_training(tmp_path, now):
    monitor = make_monitor(tmp_path)
    monitor.push(1, metrics(1.0))
    monitor.flush()
    now[0] = 2.0
    monitor.push(2, metrics(1.0))
    with monitor.paused():
        now[0] = 100.0
    monitor.flush()
    monitor.close()
    # One step of 8 pairs in 2 seconds: the first step's time is compilation, and the pause is left out.
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["pairs_per_second"] == 4.0


@pytest.mark.parametrize(("ready", "stalled"), [(True, 3.0), (False, 0.0)])
def test_a_wait_for_data_counts_where_the_devices_wait_too(tmp_path, now, ready, stalled):
    monitor = make_monitor(tmp_path, began=-15.0)
    monitor.push(1, metrics(1.0) | {"loss": Ready(ready)})
    monitor.push(2, metrics(1.0) | {"loss": Ready(ready)})
    with monitor.data_wait():
        now[0] += 3.0
    now[0] += 2.0
    monitor.flush()
    monitor.close()
    (line,) = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    # The second step was done 5 s after the first; the run began 20 s ago.
    assert line["step_seconds_p50"] == 5.0
    assert line["data_stall_seconds"] == stalled
    assert line["goodput"] == (5.0 - stalled) / 20.0


def test_the_steps_of_a_call_share_its_time(tmp_path, now):
    monitor = make_monitor(tmp_path, log_every=1, steps=9, began=-6.0)
    now[0] = 3.0
    monitor.push(3, metrics([3.0, 2.0, 1.0]))
    monitor.flush()
    now[0] = 9.0
    monitor.push(6, metrics([6.0, 5.0, 4.0]))
    monitor.flush()
    monitor.close()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["loss"]) for line in lines] == [(1, 3), (2, 2), (3, 1), (4, 6), (5, 5), (6, 4)]
    # Three steps of 8 pairs in six seconds.
    assert [line["pairs_per_second"] for line in lines[3:]] == [4.0] * 3
    assert [line["step_seconds_max"] for line in lines[3:]] == [2.0] * 3
    assert lines[-1]["goodput"] == 0.4


def test_the_step_of_a_call_whose_loss_is_not_finite_is_named(tmp_path):
    monitor = make_monitor(tmp_path)
    monitor.push(6, metrics([1.0, np.nan, np.nan]))
    check_refusal(monitor.flush, "at step 5", "questions q5-0", kind=NonFiniteLoss)
    monitor.close()


def test_percentiles_goodput_and_stalls():
    pace = Pace()
    for seconds, stalled in [(1.0, 0.0), (1.0, 0.0), (3.0, 2.0)]:
        pace.add_step(seconds, stalled)
    # Sorted 1, 1, 3: the median is 1, and p95 lies 9/10 of the way from 1 to 3. In steps: 5 s less 2 s of waits, of 10.
    found = pace.metrics(wall=10.0)
    steps = {"step_seconds_p50": 1.0, "step_seconds_p95": 2.8, "step_seconds_max": 3.0}
    assert found == steps | {"goodput": 0.3, "data_stall_seconds": 2.0}
    pace.add_step(2.0, 0.0)
    later = pace.metrics(wall=10.0)
    assert (later["data_stall_seconds"], later["goodput"]) == (0.0, 0.5)  # since the last line, and of the whole run
