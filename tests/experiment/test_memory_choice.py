"""Order of the choices, and the search for the first that fits, against a compiler that is made up."""

import dataclasses

import jax
import pytest
from tiny_bert import tiny_recipe

from endx_jax.experiment.config import resolve
from endx_jax.experiment.prepare import read_choice, write_choice
from endx_jax.experiment.train_plan import StepMemory, first_that_fits, options_by_cost
from endx_jax.models.stack import REMATS
from endx_jax.planning.compiled import trace_step, traced_flops
from endx_jax.planning.runs import RunPairs, plan_run

WHOLE = [StepMemory(0, remat) for remat in REMATS]
ORDERED = [
    *WHOLE,
    *(StepMemory(rows, "none") for rows in (8, 4, 2, 1)),
    *(StepMemory(1, remat) for remat in [*REMATS][1:]),
]
NEEDS = [400, 250, 110, 60, 210, 105, 55, 30, 25, 20, 10]  # bytes of each


@pytest.fixture(scope="module")
def settings(tiny_bert, pairs_csv):
    return resolve(tiny_recipe(tiny_bert, pairs_csv))


def with_settings(settings, chunk, remat):
    train = dataclasses.replace(settings.train, tower_chunk=chunk)
    return dataclasses.replace(settings, train=train, model=dataclasses.replace(settings.model, remat=remat))


@pytest.mark.parametrize(
    ("chunk", "remat", "platform", "expected"),
    [
        (-1, "auto", "tpu", ORDERED),
        (-1, "auto", "cpu", [choice for choice in ORDERED if choice.remat == "none"]),
        (-1, "dots", "tpu", [StepMemory(rows, "dots") for rows in (0, 8, 4, 2, 1)]),
        (0, "auto", "gpu", WHOLE),
        (5, "auto", "cpu", [StepMemory(5, "none")]),
        (5, "full", "tpu", [StepMemory(5, "full")]),
    ],
)
def test_settings_leave_some_choices(settings, chunk, remat, platform, expected):
    assert options_by_cost(with_settings(settings, chunk, remat), 16, 48, platform) == expected


def test_chunks_are_not_larger_than_keeps_a_device_busy(settings):
    assert options_by_cost(settings, 4096, 320, "tpu")[4] == StepMemory(128, "none")
    assert options_by_cost(settings, 4096, 2**20, "tpu")[4] == StepMemory(1, "none")
    assert options_by_cost(settings, 1, 320, "tpu") == WHOLE


def test_the_order_is_that_of_the_computed_flop(settings):
    plan = plan_run(settings, RunPairs(None), devices=jax.devices()[:1])
    flops = []
    for choice in [*WHOLE, StepMemory(8, "none"), StepMemory(4, "none"), StepMemory(4, "full")]:
        flops.append(traced_flops(trace_step(plan.with_choice(choice)).jaxpr))
    assert flops == sorted(flops)
    assert flops[3] > 1.2 * flops[0]  # the forward pass again


def search(needs, expected=None, room=100):
    """Returns the choice and the compiled ones, where choices need, and should need, so many bytes."""
    compiled = []

    def compile_choice(choice):
        assert choice not in compiled
        compiled.append(choice)
        return needs[ORDERED.index(choice)]

    expected = expected or needs
    return first_that_fits(ORDERED, room, lambda c: expected[ORDERED.index(c)], compile_choice), compiled


def test_one_program_is_compiled_where_shapes_tell_the_memory():
    for room, chosen in ((100, WHOLE[3]), (400, WHOLE[0]), (59, ORDERED[6]), (1, ORDERED[-1])):
        assert search(NEEDS, room=room) == (chosen, [chosen])


@pytest.mark.parametrize("scale", [0.4, 0.66, 1.5, 2.5])
def test_a_wrong_estimate_is_corrected_by_the_first_program(scale):
    for room in (20, 50, 100, 300):
        chosen, compiled = search(NEEDS, [scale * n for n in NEEDS], room)
        assert chosen == next(c for c, n in zip(ORDERED, NEEDS, strict=True) if n <= room)
        assert len(compiled) <= 2 + (scale > 1)


def test_the_search_ends_where_the_estimates_tell_nothing():
    needs = [101, 102, 103, 104, 50, 40, 30, 20, 10, 5, 1]
    chosen, compiled = search(needs, [1] * len(needs))
    assert needs[ORDERED.index(chosen)] <= 100
    assert len(compiled) <= 5
    assert search([101] * len(needs), [1] * len(needs))[0] == ORDERED[-1]


def test_a_choice_is_read_again(tmp_path):
    folder = str(tmp_path / "cache")
    assert read_choice(folder, "key") is None
    write_choice(folder, "key", WHOLE[1])
    assert read_choice(folder, "key") == WHOLE[1]
    assert read_choice(folder, "other") is None
    (tmp_path / "cache/choice-key.json").write_text("{")
    assert read_choice(folder, "key") is None
    write_choice("/proc/nowhere", "key", WHOLE[1])  # no error
