from endx_jax.training.monitor import Pace


def test_percentiles_goodput_and_stalls():
    pace = Pace()
    for seconds, stalled in [(1.0, 0.0), (1.0, 0.0), (3.0, 2.0)]:
        pace.add_step(seconds, stalled)
    # Sorted 1, 1, 3: the median is 1, and p95 lies 9/10 of the way from 1 to 3. In steps: 5 s less 2 s of waits, of 10.
    assert pace.metrics(wall=10.0) == {
        "step_seconds_p50": 1.0,
        "step_seconds_p95": 2.8,
        "step_seconds_max": 3.0,
        "goodput": 0.3,
        "data_stall_seconds": 2.0,
    }


def test_stalls_are_those_since_the_last_line_and_goodput_that_of_the_run():
    pace = Pace()
    pace.add_step(2.0, 1.0)
    pace.metrics(wall=4.0)
    pace.add_step(2.0, 0.0)
    later = pace.metrics(wall=4.0)
    assert (later["data_stall_seconds"], later["goodput"]) == (0.0, 0.75)
