"""The plan for the machine at hand: a step is compiled and timed there."""

import dataclasses
import types

from endx_jax.experiment.config import resolve
from endx_jax.parallel.memory import DeviceMemory
from endx_jax.planning import machine as machines
from endx_jax.planning import report, runs
from endx_jax.planning.chips import CHIPS
from endx_jax.planning.machine import plan_machine
from endx_jax.planning.plan import Plan, on_chips
from endx_jax.planning.runs import RunPairs, read_texts

NO_DATA = RunPairs(None, "not read")


def planned_here(settings, texts):
    return Plan(texts, on_chips(settings, texts, [CHIPS["L4"]]), machine=plan_machine(settings, texts))


def test_steps_are_timed_and_the_run_is_estimated(config):
    settings = resolve(config)
    texts = read_texts(settings)
    found = planned_here(settings, texts)
    machine = found.machine
    assert machine.steps == settings.train.total_steps(len(texts.pairs)) == 6
    assert 0 < machine.seconds < 60
    known = dataclasses.replace(found, machine=dataclasses.replace(machine, seconds=25.0))
    expected = "timed here, a step takes 25.00 s: about 2.5 minutes for the 6 steps of the run, without compilation and"
    assert expected in report.format_plan(known, "tiny")
    assert report.as_dict(known, "tiny")["machine"]["seconds"] == 25.0


def test_a_call_that_compiles_is_not_counted(config, monkeypatch):
    found = runs.plan_run(resolve(config), NO_DATA)
    seconds = iter([100.0, 1.0, 2.0, 6.0])  # the first compiles
    now = [0.0]

    def step(state, batch):
        now[0] += next(seconds)
        return state, {}

    found.__dict__["train_step"] = step  # a cached property
    monkeypatch.setattr(machines.time, "perf_counter", lambda: now[0])
    assert machines.time_steps(found) == 3.0


def test_the_length_of_a_run_of_unknown_data_is_not_estimated(config, monkeypatch):
    monkeypatch.setattr(machines, "compile_what_fits", lambda planned: (planned, types.SimpleNamespace(peak=1)))
    monkeypatch.setattr(machines, "time_steps", lambda planned: 1.5)
    config.train.steps, config.train.epochs = 0, 1.0
    found = planned_here(resolve(config), NO_DATA)
    assert (found.machine.steps, found.machine.seconds) == (0, 1.5)
    assert report.format_plan(found, "tiny").splitlines()[-1].startswith("timed here, a step takes ")
    assert "of the run" not in report.format_plan(found, "tiny")


def test_a_step_that_does_not_fit_is_not_timed(config, monkeypatch):
    monkeypatch.setattr(runs, "measure", lambda: DeviceMemory(10**6))
    settings = resolve(config)
    machine = plan_machine(settings, read_texts(settings))
    assert (machine.fits, machine.seconds) == (False, None)
