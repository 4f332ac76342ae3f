import sys
import types

import pytest

from endx_jax.errors import EndxError
from endx_jax.training.metric_log import MetricLog
from endx_jax.training.tensorboard import TensorBoard
from endx_jax.training.wandb_log import ID_FILE, check_installed


class Refused(Exception):
    """As `wandb.Error`."""


@pytest.fixture
def wandb(monkeypatch):
    """A stand-in that keeps what it is given; TensorBoard, which takes long to load, is left out."""
    monkeypatch.setattr(TensorBoard, "is_installed", lambda: False)
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
    assert first["id"] == (tmp_path / ID_FILE).read_text()
    assert wandb.finished == 2


def test_without_a_project_it_is_not_touched(tmp_path, wandb):
    MetricLog(tmp_path, resume_step=0).close()
    assert wandb.inits == []


def test_a_refusal_is_one_line(tmp_path, wandb):
    def refuse(**arguments):
        raise Refused("no API key\nconfigured")

    wandb.init = refuse
    with pytest.raises(EndxError, match=r"train.wandb_project=papers \(no API key configured\): log in"):
        MetricLog(tmp_path, resume_step=0, wandb_project="papers")


def test_where_it_is_not_installed_that_is_said_early(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    check_installed("")
    with pytest.raises(EndxError, match=r"pip install 'endx_jax\[wandb\]'"):
        check_installed("papers")
