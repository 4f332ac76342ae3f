"""The log of metrics, TensorBoard events as tensorboardX reads them, and Weights & Biases with a stand-in."""

import errno
import json
import pathlib
import sys
import types

import pytest
from helpers import raising
from refusals import check_refusal

from endx_jax.files import AppendOnlyFile
from endx_jax.training import metric_log
from endx_jax.training.metric_log import FILE, WANDB_ID, MetricLog, TensorBoard, check_installed

FULL = pathlib.Path("/dev/full")  # a device without any space


def lines(workdir):
    return [json.loads(line) for line in (workdir / FILE).read_text().splitlines()]


def test_a_resumed_run_drops_what_it_will_do_again_and_what_a_crash_cut(tmp_path):
    text = '{"step": 1, "loss": 1.0}\n{"step": 2, "loss": 2.0}\n{"step": 3, "loss": 3.0}\n{"step": 4, "lo'
    (tmp_path / FILE).write_text(text)
    log = MetricLog(tmp_path, resume_step=2)
    log.write(3, {"loss": 3.5})
    log.close()
    assert [line["step"] for line in lines(tmp_path)] == [1, 2, 3]
    assert lines(tmp_path)[-1]["loss"] == 3.5


def test_a_line_that_does_not_fit_on_the_disk_is_one_line_and_dropped_later(tmp_path, monkeypatch):
    (tmp_path / FILE).write_text('{"step": 1}\n')
    monkeypatch.setattr(metric_log, "AppendOnlyFile", lambda path: AppendOnlyFile(FULL))
    log = MetricLog(tmp_path, resume_step=1)
    check_refusal(lambda: log.write(2, {"loss": 0.5}), "No space left")
    log.close()
    assert lines(tmp_path) == [{"step": 1}]


def test_lines_that_hold_no_step_are_dropped(tmp_path):
    damaged = [b"5", b"\xff", b"\0\0\0", b"{}", b'{"step": "1"}', b'{"step": 1e999}', b"9" * 5_000, b"[" * 100_000]
    (tmp_path / FILE).write_bytes(b"\n".join([b'{"step": 1}', *damaged, b'{"step": 2}\n']))
    MetricLog(tmp_path, resume_step=2).close()
    assert lines(tmp_path) == [{"step": 1}, {"step": 2}]


def test_tensorboard_events_are_written_where_its_writer_is_installed(tmp_path):
    pytest.importorskip("tensorboardX", reason="the extra [tensorboard] is not installed")
    log = MetricLog(tmp_path, resume_step=0)
    log.write(1, {"loss": 0.5})
    log.close()
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    (file,) = (tmp_path / "tensorboard").iterdir()
    written, found = file.read_bytes(), []
    while written:  # length, checksum, event, checksum
        length = int.from_bytes(written[:8], "little")
        found.append(Event.FromString(written[12 : 12 + length]))
        written = written[12 + length + 4 :]
    assert [event.step for event in found] == [0, 1, 1, 1]
    assert found[2].session_log.status == SessionLog.START  # from its step on, TensorBoard hides what was there
    assert [(value.tag, value.simple_value) for value in found[3].summary.value] == [("loss", 0.5)]


def test_tensorboard_on_a_full_disk_is_one_line(tmp_path, monkeypatch):
    writer = pytest.importorskip("tensorboardX.record_writer", reason="the extra [tensorboard] is not installed")
    write = raising(OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr(writer, "open_file", lambda path: types.SimpleNamespace(write=write))
    check_refusal(lambda: TensorBoard(tmp_path, resume_step=0), f"{tmp_path}/tensorboard", "No space left")


class Refused(Exception):
    """As `wandb.Error`."""


@pytest.fixture
def wandb(monkeypatch):
    """A stand-in that keeps what it is given."""
    module = types.SimpleNamespace(inits=[], logged=[], finished=0, Error=Refused)

    def finish():
        module.finished += 1

    def init(**arguments):
        module.inits.append(arguments)
        return types.SimpleNamespace(log=lambda values, step: module.logged.append((step, values)), finish=finish)

    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def test_numbers_go_to_the_project_and_a_resumed_run_to_the_same_run(tmp_path, wandb):
    for step in (1, 2):
        log = MetricLog(tmp_path, resume_step=step - 1, wandb_project="papers")
        log.write(step, {"mrr": 0.5}, prefix="validation/")
        log.close()
    assert wandb.logged == [(1, {"validation/mrr": 0.5}), (2, {"validation/mrr": 0.5})]
    first, second = wandb.inits
    assert first == second
    assert first["project"] == "papers"
    assert first["id"] == (tmp_path / WANDB_ID).read_text()
    assert wandb.finished == 2


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Refused("no API key\nconfigured"), "no API key configured"),
        # as pydantic of an invalid variable
        (ValueError("1 validation error for Settings\nmode\n  Input"), "1 validation error for Settings mode Input"),
    ],
)
def test_a_refusal_is_one_line(tmp_path, wandb, error, said):
    def init(**_):
        raise error

    wandb.init = init
    check_refusal(lambda: MetricLog(tmp_path, resume_step=0, wandb_project="papers"), "wandb_project=papers", said)


def test_a_folder_of_the_files_of_wandb_is_not_its_package(tmp_path, monkeypatch):
    (tmp_path / "wandb").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    check_installed("")
    check_refusal(lambda: check_installed("papers"), "train.wandb_project", "pip install -e")
