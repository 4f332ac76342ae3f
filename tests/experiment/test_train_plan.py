"""Chunks and rematerialisation that are chosen from the memory that is free: their order, and the first that fits."""

import dataclasses
import math

import jax
import numpy as np
import pytest
from helpers import one_device
from refusals import check_refusal
from tiny_bert import LAYERS, tiny_recipe

from endx_jax.experiment.compile_step import compile_and_restore
from endx_jax.experiment.config import resolve
from endx_jax.experiment.model import build_model
from endx_jax.experiment.prepared_run import attention_lines
from endx_jax.experiment.run import prepare_run
from endx_jax.experiment.step_memory import StepMemory, first_that_fits, options_by_cost
from endx_jax.experiment.train_plan import TrainPlan, plan_training
from endx_jax.models import attention
from endx_jax.models.stack import REMATS
from endx_jax.parallel import MeshSettings, make_mesh, to_global
from endx_jax.parallel.memory import ACCELERATOR_SHARE, DeviceMemory, bytes_held
from endx_jax.parallel.sharding import put
from endx_jax.planning.compiled import trace_step, traced_flops
from endx_jax.training.compilation import CompiledStep

PLENTY = DeviceMemory(2**40)
WHOLE = [StepMemory(0, remat) for remat in REMATS]


@pytest.fixture(scope="module", autouse=True)
def traced_once():
    """Plans here differ in their memory and choice, and only the choice decides over activations, traced slowly."""
    found, compute = {}, TrainPlan.activations.func

    def activations(plan):
        key = (plan.choice, *plan.mesh.shape.items(), plan.settings.model.lora.rank)
        return found[key] if key in found else found.setdefault(key, compute(plan))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainPlan, "activations", property(activations))
        yield


@pytest.fixture(scope="module")
def run(tiny_bert, pairs_csv, tmp_path_factory):
    """A run on one device, in batches of 16 pairs, which are small for any machine."""
    config = tiny_recipe(tiny_bert, pairs_csv)
    config.model.dropout = 0.0  # to trace less
    with one_device():
        return prepare_run(config, tmp_path_factory.mktemp("run"))


def arranged(run, memory):
    return plan_training(run.model, run.plan.mesh, run.plan.stream.pairs, memory)


def with_room_for(run, activations):
    """Memory of which half is the state and so many bytes of activations."""
    return DeviceMemory(2 * (bytes_held(run.plan.state) + activations))


def test_sides_with_the_same_tower_are_packed_together_on_accelerators(run):
    def packing(sharing, platform):
        settings = run.settings
        towers = dataclasses.replace(settings.model, sharing=sharing)
        model = dataclasses.replace(run.model, settings=dataclasses.replace(settings, model=towers))
        return dataclasses.replace(run.plan, model=model, platform=platform).stream[0].packing

    assert len(packing("sde", "gpu").row_widths) == 2 * run.plan.rows_at_once
    assert packing("ade", "gpu") is packing("sde", "cpu") is None


def test_chunks_shrink_to_half_of_the_free_memory_and_have_a_row_at_least(run):
    assert run.plan.execution.tower_chunk == 0
    assert run.plan.rows_at_once == 16
    whole = run.plan.activations
    assert arranged(run, with_room_for(run, whole)).rows_at_once == 16
    found = [arranged(run, with_room_for(run, whole * share // 16)) for share in (15, 7, 3)]
    assert [one.rows_at_once for one in found] == [8, 4, 2]
    for one in found:
        assert one.expected_peak <= one.memory.total / 2
    assert arranged(run, with_room_for(run, 1)).rows_at_once == 1


def test_split_matrices_are_gathered_whole_for_chunks_where_they_fit_with_their_gradient(tiny_bert, pairs_csv, run):
    def execution(memory, rank=0, **mesh):
        config = tiny_recipe(tiny_bert, pairs_csv)
        config.train.tower_chunk, config.train.global_batch_size, config.model.lora.rank = 2, 16, rank
        config.data.hard_negatives = 0
        model, devices = build_model(resolve(config)), jax.devices()[: math.prod(mesh.values())]
        return plan_training(model, make_mesh(MeshSettings(**mesh), devices), run.plan.stream.pairs, memory).execution

    matrices = LAYERS * (4 * 32 * 32 + 2 * 32 * 64) * 4  # bytes of the layers' kernels
    # On CPUs a step may use half of the memory.
    held = 2 * bytes_held(run.plan.state)
    assert not execution(DeviceMemory(held + 2 * 2 * matrices), data=1, fsdp=2).by_layer
    assert execution(DeviceMemory(matrices), data=1, fsdp=2).by_layer
    assert not execution(DeviceMemory(matrices), data=2, fsdp=1).by_layer
    adapted = execution(PLENTY, rank=4, data=1, fsdp=2)
    assert (adapted.by_layer, adapted.packed) == (True, True)


def test_a_run_on_gpus_says_which_attention_it_uses(run, monkeypatch):
    monkeypatch.setattr(attention, "platform", lambda: "gpu")
    monkeypatch.setattr(attention, "_missing_for_cudnn", lambda: "")  # no GPU is here
    assert not [*attention_lines(run.plan)]  # the run is on a CPU
    on_gpu = dataclasses.replace(run.plan, platform="gpu")
    assert [*attention_lines(on_gpu)] == [
        "attention: plain, since fused attention needs model.dtype=bfloat16 and model.attention_dropout=0 "
        "(now float32 and 0.1)"
    ]


def test_steps_that_do_not_fit_are_refused_before_compilation(run, monkeypatch):
    monkeypatch.setattr("endx_jax.experiment.compile_step.compile_ahead", lambda *_: pytest.fail("compiled"))
    check_refusal(lambda: compile_and_restore(arranged(run, DeviceMemory(1000))), "0.0 GB", "or set a smaller")


@pytest.fixture
def compiler(monkeypatch):
    """Stands in for the compiler, whose bytes no test can choose: sets those of the activations of each choice.

    Lists the choices that are compiled.
    """

    def use(needs):
        compiled = []

        def compile_plan(plan, batches):
            compiled.append((plan.choice, len(batches)))
            return CompiledStep({}, plan.choice, bytes_held(plan.state) + needs(plan))

        monkeypatch.setattr("endx_jax.experiment.compile_step._compile", compile_plan)
        return compiled

    return use


@pytest.mark.parametrize(("share", "rows"), [(1.5, 8), (1.0, 16), (0.1, 16), (2.5, 4)])
def test_chunks_shrink_where_the_compiled_step_takes_more(run, compiler, capsys, share, rows):
    train_plan = arranged(run, with_room_for(run, run.plan.activations))
    compiled = compiler(lambda plan: int(share * plan.activations))
    begun, state, step = compile_and_restore(train_plan)
    assert [choice.tower_chunk for choice, _ in compiled] == [0, rows][: 1 + (rows < 16)]
    assert {count for _, count in compiled} == {len(train_plan.stream.profiles())}
    assert step.fallback == begun.choice
    assert begun.rows_at_once == rows
    assert begun.settings.train.tower_chunk == -1
    assert int(state.step) == 0
    assert "memory: expected peak " in capsys.readouterr().out


def test_a_chunk_that_is_smaller_than_expected_is_kept(run, compiler):
    compiler(lambda plan: 0)
    begun, *_ = compile_and_restore(arranged(run, with_room_for(run, run.plan.activations * 15 // 16)))
    assert begun.rows_at_once == 8


@pytest.mark.slow
@pytest.mark.parametrize("choice", [StepMemory(8, "full"), *WHOLE[1:], StepMemory(4, "none")])
def test_no_choice_changes_the_loss(run, choice):
    create = jax.jit(run.plan.create)

    def step_with(choice):
        train_plan = run.plan.with_choice(choice)
        batch = to_global(train_plan.stream[0], run.plan.mesh, 16)
        state = create(put(run.model.initial_params(), train_plan.shardings.params))
        _, metrics = train_plan.train_step(state, batch)
        return [float(metrics[name]) for name in ("loss", "gradient_norm")]

    expected = step_with(WHOLE[0])
    assert expected[0] > 0
    np.testing.assert_allclose(step_with(choice), expected, rtol=1e-5)


# From here on an accelerator.


def accelerated(run, room):
    """The plan on an accelerator with so much room for activations."""
    memory = DeviceMemory(1 + math.ceil((bytes_held(run.plan.state) + room) / ACCELERATOR_SHARE))
    return plan_training(run.model, run.plan.mesh, run.plan.stream.pairs, memory, "tpu")


def test_the_choice_of_an_accelerator_is_compiled_once(run, compiler, capsys):
    compiled, room = compiler(lambda plan: plan.activations), run.plan.activations
    begun, _, step = compile_and_restore(accelerated(run, room))
    assert compiled == [(WHOLE[0], 1)]
    assert step.fallback == begun.choice == WHOLE[0]
    begun, *_ = compile_and_restore(accelerated(run, room * 3 // 4))
    chosen = begun.choice
    assert compiled[1:] == [(chosen, 1)]
    assert chosen in WHOLE[1:]
    assert begun.objective.model.question.encoder.remat == chosen.remat
    assert begun.settings.model.remat == "auto"
    assert f"; compiling it with all pairs at once, remat {chosen.remat}" in capsys.readouterr().out


def test_an_estimate_that_is_too_high_costs_one_more_program(run, compiler):
    compiled = compiler(lambda plan: plan.activations * 2 // 3)
    begun, *_ = compile_and_restore(accelerated(run, run.plan.activations * 3 // 4))
    assert begun.choice == WHOLE[0]
    assert len(compiled) == 2
    assert compiled[1][0] == WHOLE[0]


def test_a_run_that_no_choice_fits_is_refused(run, compiler):
    compiled, found = compiler(lambda plan: 2**40), accelerated(run, run.plan.activations)
    few = [found.choices[n] for n in (0, 3, -1)]  # tracing takes long
    check_refusal(lambda: compile_and_restore(dataclasses.replace(found, choices=few)), "1099.5 GB", "0.0 GB")
    assert compiled[-1][0] == StepMemory(1, "full")


ORDERED = [
    *WHOLE,
    *(StepMemory(rows, "none") for rows in (8, 4, 2, 1)),
    *(StepMemory(1, remat) for remat in [*REMATS][1:]),
]
NEEDS = [400, 250, 110, 60, 210, 105, 55, 30, 25, 20, 10]  # bytes of each


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
def test_settings_leave_some_choices(run, chunk, remat, platform, expected):
    settings = run.settings
    train = dataclasses.replace(settings.train, tower_chunk=chunk)
    given = dataclasses.replace(settings, train=train, model=dataclasses.replace(settings.model, remat=remat))
    assert options_by_cost(given, 16, 48, platform) == expected


def test_chunks_are_not_larger_than_keeps_a_device_busy(run):
    settings = run.settings
    assert options_by_cost(settings, 4096, 320, "tpu")[4] == StepMemory(128, "none")
    assert options_by_cost(settings, 4096, 2**20, "tpu")[4] == StepMemory(1, "none")
    assert options_by_cost(settings, 1, 320, "tpu") == WHOLE


def test_the_order_is_that_of_the_computed_flop(run):
    choices = [*WHOLE, StepMemory(4, "none"), StepMemory(4, "full")]
    flops = [traced_flops(trace_step(run.plan.with_choice(choice)).jaxpr) for choice in choices]
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
