import json
import pathlib

import pytest
from helpers import one_line_error

from endx_jax.files import Growing
from endx_jax.training.metric_log import FILE, MetricLog
from endx_jax.training.tensorboard import TensorBoard

FULL = pathlib.Path("/dev/full")  # a device that has no space left, ever


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
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import RecordWriter

    (file,) = (tmp_path / "tensorboard").iterdir()
    written, events = file.read_bytes(), []
    records = RecordWriter(str(tmp_path / "records"))  # as tensorboardX frames the same messages
    while sum(8 + 4 + len(event) + 4 for event in events) < len(written):
        start = sum(8 + 4 + len(event) + 4 for event in events)
        length = int.from_bytes(written[start : start + 8], "little")
        events.append(written[start + 12 : start + 12 + length])
        records.write(events[-1])
    records.close()
    assert (tmp_path / "records").read_bytes() == written
    found = [Event.FromString(event) for event in events]
    assert [event.step for event in found] == [0, 1, 1]  # from 1 on, what was there is hidden
    assert [(value.tag, value.simple_value) for value in found[2].summary.value] == [("loss", 0.5)]


def test_tensorboard_on_a_full_disk_is_one_line(tmp_path, monkeypatch):
    pytest.importorskip("tensorboardX", reason="the extra [tensorboard] is not installed")
    events = TensorBoard(tmp_path, resume_step=0)
    events._file.close()
    monkeypatch.setattr(events, "_file", Growing(FULL))
    for step in range(20):  # tensorboardX itself would wait for ever
        with one_line_error("No space left"):
            events.write(step, {"loss": 0.5})
    events.close()


def test_a_line_that_does_not_fit_on_the_disk_is_one_line_and_dropped_later(tmp_path, monkeypatch):
    log = MetricLog(tmp_path, resume_step=0)
    log.write(1, {"loss": 0.5})
    log._file.close()
    monkeypatch.setattr(log, "_file", Growing(FULL))
    with one_line_error("No space left"):
        log.write(2, {"loss": 0.5})
    log.close()
    assert [line["step"] for line in lines(tmp_path)] == [1]


def test_without_tensorboards_writer_there_are_no_events(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    log = MetricLog(tmp_path, resume_step=0)
    log.write(1, {"loss": 0.5})
    log.close()
    assert [file.name for file in tmp_path.iterdir()] == [FILE]
