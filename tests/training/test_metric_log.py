import json

import pytest

from endx_jax.training.metric_log import FILE, MetricLog


def lines(workdir):
    return [json.loads(line) for line in (workdir / FILE).read_text().splitlines()]


def test_one_object_a_line(tmp_path):
    log = MetricLog(tmp_path, resume_step=0)
    log.write(1, {"loss": 0.5})
    log.write(2, {"mrr": 0.7}, prefix="validation/")
    log.close()
    assert lines(tmp_path) == [{"step": 1, "loss": 0.5}, {"step": 2, "validation/mrr": 0.7}]


def test_a_resumed_run_drops_what_it_will_do_again_and_what_a_crash_cut(tmp_path):
    text = '{"step": 1, "loss": 1.0}\n{"step": 2, "loss": 2.0}\n{"step": 3, "loss": 3.0}\n{"step": 4, "lo'
    (tmp_path / FILE).write_text(text)
    log = MetricLog(tmp_path, resume_step=2)
    log.write(3, {"loss": 3.5})
    log.close()
    assert [line["step"] for line in lines(tmp_path)] == [1, 2, 3]
    assert lines(tmp_path)[-1]["loss"] == 3.5


def test_tensorboard_events_are_written_where_its_writer_is_installed(tmp_path):
    pytest.importorskip("tensorboardX", reason="the extra [tensorboard] is not installed")
    log = MetricLog(tmp_path, resume_step=0)
    log.write(1, {"loss": 0.5})
    log.close()
    assert [file.stat().st_size > 0 for file in (tmp_path / "tensorboard").iterdir()] == [True]


def test_without_tensorboards_writer_there_are_no_events(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    log = MetricLog(tmp_path, resume_step=0)
    log.write(1, {"loss": 0.5})
    log.close()
    assert [file.name for file in tmp_path.iterdir()] == [FILE]
