"""Runs that are found, runs that are made, and runs that can't be."""

import dataclasses
import pathlib

import pytest
from helpers import one_line_error
from made_runs import finish

from endx_jax.experiment.config import resolve
from reproduction import runs as module
from reproduction.runs import Options, make, plan_of, trained
from reproduction.tables import papers

ROW = papers().row("endx-table2/Dual-GRUs")


class Model:
    """Stands in for a built model: its settings are as the config has them."""

    def __init__(self, settings):
        self.settings = settings


@pytest.fixture
def options(tmp_path, monkeypatch):
    """A shortened run, whose pretrained folder is not looked at."""
    monkeypatch.setattr(module, "build_model", Model)
    return Options(tmp_path, data={"squad": "folder"}, budget=60, seeds=2)


def run_that_finishes(mrr):
    """What takes the place of a training run: it leaves finished workdirs, each better by a hundredth."""
    made = []

    def run(config, workdir: pathlib.Path):
        finish(workdir, config, mrr + 0.01 * len(made))
        made.append(workdir)

    return run, made


def test_runs_are_made_once_and_then_found(options, monkeypatch):
    run, made = run_that_finishes(0.5)
    monkeypatch.setattr(module, "run", run)
    first = trained(ROW, options)
    assert first.values == (pytest.approx((50.0, 49.0, 45.0)), pytest.approx((51.0, 50.0, 46.0)))
    assert [path.name for path in made] == ["seed0", "seed1"]
    assert trained(ROW, options).values == first.values
    assert len(made) == 2
    facts = first.facts["runs"]
    assert [(fact["seed"], fact["steps"], fact["batch"]) for fact in facts] == [(0, 40, 128), (1, 40, 128)]
    assert facts[0]["manifest"]["data_sha256"] == "ab" * 32


def test_nothing_begins_when_the_budget_is_used_up(options, monkeypatch):
    run, made = run_that_finishes(0.5)
    monkeypatch.setattr(module, "run", run)
    now = iter((0.0, 2.0))
    monkeypatch.setattr(module.time, "monotonic", lambda: next(now))
    found = trained(ROW, dataclasses.replace(options, deadline=1.0))
    assert (len(found.values), len(made)) == (1, 1)
    assert found.why == "the budget is used up; the same command resumes"


def test_a_run_with_other_settings_is_refused(options):
    plan = plan_of(ROW, options)
    config = plan.config(0, options)
    config.train.steps = 99
    finish(plan.workdir(0), config, 0.5)
    with one_line_error("other settings .train.steps: 99 -> 80."):
        make(plan, 0, options)
    assert resolve(config).train.steps == 99
