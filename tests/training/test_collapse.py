import jax.numpy as jnp

from endx_jax.training.collapse import COLLAPSED, CollapseWatch
from endx_jax.training.monitor import Monitor


def lines(watch, step, **divergences):
    return list(watch.look(step, {"loss": 0.0, **{f"kl/{name}": value for name, value in divergences.items()}}))


def test_a_collapse_is_said_once_for_each_posterior_and_again_after_it_was_mended():
    watch = CollapseWatch()
    assert lines(watch, 10, question=COLLAPSED, answer=30.0) == []
    (line,) = lines(watch, 20, question=0.034, answer=30.0)
    assert line.startswith("warning: the posterior of each question has collapsed onto the prior: at step 20")
    assert "0.034 nats" in line
    assert "objective.free_bits" in line
    assert "\n" not in line
    assert lines(watch, 30, question=0.0, answer=30.0) == []
    assert len(lines(watch, 40, question=0.0, answer=0.0)) == 1
    assert lines(watch, 50, question=2.0, answer=0.0) == []
    assert len(lines(watch, 60, question=0.5, answer=0.0)) == 1


def test_the_monitor_says_it(tmp_path, capsys):
    settings = {"start": 0, "steps": 2, "global_batch_size": 8, "log_every": 1, "began": 0.0}
    monitor = Monitor(tmp_path, **settings, example_names=lambda step: [])
    for step, divergence in ((1, 9.0), (2, 0.1)):
        numbers = {"loss": 1.0, "learning_rate": 0.1, "tokens": 5.0, "kl/answer": divergence}
        monitor.push(step, {name: jnp.float32(value) for name, value in numbers.items()})
    monitor.flush()
    monitor.close()
    said = capsys.readouterr().out.splitlines()
    assert [line.startswith("warning: the posterior of each answer") for line in said] == [False, False, True]
