import json
import pathlib

from helpers import one_line_error

from endx_jax.files import AppendOnlyFile
from endx_jax.training.metric_log import FILE, MetricLog

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


def test_a_line_that_does_not_fit_on_the_disk_is_one_line_and_dropped_later(tmp_path, monkeypatch):
    log = MetricLog(tmp_path, resume_step=0)
    log.write(1, {"loss": 0.5})
    log._file.close()
    monkeypatch.setattr(log, "_file", AppendOnlyFile(FULL))
    with one_line_error("No space left"):
        log.write(2, {"loss": 0.5})
    log.close()
    assert [line["step"] for line in lines(tmp_path)] == [1]


def test_lines_that_hold_no_step_are_dropped(tmp_path):
    damaged = [b"5", b"\xff", b"\0\0\0", b"{}", b'{"step": "1"}', b'{"step": 1e999}', b"9" * 5_000, b"[" * 100_000]
    (tmp_path / FILE).write_bytes(b"\n".join([b'{"step": 1}', *damaged, b'{"step": 2}\n']))
    MetricLog(tmp_path, resume_step=2).close()
    assert lines(tmp_path) == [{"step": 1}, {"step": 2}]
