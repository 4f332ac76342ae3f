import dataclasses
import re

import jax
import pytest
from refusals import check_refusal
from tiny_bert import WIDTH, tiny_recipe, vocabulary

from endx_jax.experiment.config import resolve
from endx_jax.methods.late.objective import LateSettings
from endx_jax.models.token_embeddings import TOKENS
from endx_jax.planning import compiled as compiling
from endx_jax.planning import plan as planning
from endx_jax.planning import report
from endx_jax.planning.chips import CHIPS, chip_named, chip_of
from endx_jax.planning.compiled import Compiled
from endx_jax.planning.plan import Plan, on_chips, plan_topology
from endx_jax.planning.programs import Collective
from endx_jax.planning.roofline import LAUNCH, LAUNCHES
from endx_jax.planning.runs import RunPairs
from endx_jax.planning.topologies import topology_named

NO_DATA = RunPairs(None, "not read")
SIZE = 16 * 10**9
TABLE = 4 * len(vocabulary()) * WIDTH  # bytes
COMPILED = Compiled(
    arguments=10**9,
    temporaries=2 * 10**9,
    code=0,
    peak=3 * 10**9,
    room=0,
    fits=True,
    donated=10**9,
    collectives=[Collective("all-reduce", 10**8, 3, 0, "")],
    estimate=0.5,
    roofline={},
    seconds=12.0,
    text="ENTRY",
)


@pytest.fixture(scope="module")
def settings(tiny_bert, pairs_csv):
    """Of the token table alone: the step is traced for each chip."""
    config = tiny_recipe(tiny_bert, pairs_csv, encoder="none")
    config.train.tower_chunk = 0
    return resolve(config)


@pytest.fixture(scope="module")
def planned(settings):
    return Plan(NO_DATA, on_chips(settings, NO_DATA, CHIPS.values()))


@pytest.fixture
def compiler(monkeypatch):
    """Stands in for a TPU's compiler, which returns a given result."""

    def use(compiled):
        monkeypatch.setattr(planning, "missing_compiler", lambda chip: "")
        monkeypatch.setattr(planning, "devices_of", lambda topology: jax.devices()[: topology.size])
        monkeypatch.setattr(compiling, "compile_step", lambda train_plan: compiled)

    return use


def test_chips_are_found_by_name():
    assert chip_named("h100") is CHIPS["H100"]
    check_refusal(lambda: chip_named("v7"), "--chip=v7", "v4", "v5e")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("TPU v5 lite", "v5e"),
        ("TPU v5p", "v5p"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("cpu", None),
        ("Tesla T4", "T4"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", None),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA A10", None),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
    ],
)
def test_chips_are_found_by_kind_and_one_that_only_begins_alike_is_another(kind, name):
    assert chip_of(kind) is (CHIPS[name] if name else None)


def test_all_chips_are_planned_and_a_step_takes_as_long_as_its_slowest_part(planned):
    one = dataclasses.replace(planned.chips[0], model_flops=275 * 10**12, parameters=10**9, optimizer=0, batch=0)
    assert one.seconds == 1.0
    assert dataclasses.replace(one, model_flops=1).seconds == 2 * 10**9 / 1200e9
    assert [one.chip.name for one in planned.chips] == list(CHIPS)
    assert all(one.fits for one in planned.chips)
    work = planned.chips[0]
    assert work.parameters == TABLE
    assert not dataclasses.replace(work, expected=34 * 10**9).fits


def test_what_is_recomputed_is_no_work_of_the_model(bert_config):
    settings = resolve(bert_config)
    recomputed = dataclasses.replace(settings, model=dataclasses.replace(settings.model, remat="full"))
    (again,), (work,) = (on_chips(one, NO_DATA, [CHIPS["v4"]]) for one in (recomputed, settings))
    assert again.model_flops == work.model_flops > 0
    assert work.parameters == 4 * 15584


def test_late_interaction_is_planned(bert_config):
    bert_config.objective = dataclasses.asdict(LateSettings())
    bert_config.model.pooling = TOKENS
    (work,) = on_chips(resolve(bert_config), NO_DATA, [CHIPS["v4"]])
    assert work.model_flops > 0


def test_a_compiled_step_is_reported(settings, compiler):
    compiler(COMPILED)
    found = plan_topology(settings, NO_DATA, topology_named("v5e:2x4"))
    shown = report.format_plan(found, "tiny")
    assert shown.startswith("tiny: 16 pairs a step on v5e:2x4, 8 devices (data 8 x fsdp 1 x tensor 1)")
    assert "3.00 GB, 17% of 17.2 GB: it fits" in shown
    assert "all-reduce" in shown
    assert "300 MB received" in shown
    assert re.search("by the compiler's cost analysis +500 ms", shown)
    assert "untested: no TPU has run these programs" in shown
    assert report.as_dict(found, "tiny")["compiled"]["estimate"] == 0.5


def test_the_step_of_a_gpu_is_reported_by_kind_of_kernel(settings, compiler):
    times = {"matrix products": 0.2, "communication": 0.05, LAUNCHES: 1000 * LAUNCH}
    compiler(dataclasses.replace(COMPILED, estimate=0.0, roofline=times))
    found = plan_topology(settings, NO_DATA, topology_named("h200:8"))
    shown = report.format_plan(found, "tiny")
    cells = dict(re.findall(r"^  (\S.*?)  +(\S+ ms)$", shown, re.MULTILINE))
    assert cells == {
        "matrix products": "200 ms",
        "communication": "50.0 ms",
        "launches of 1,000 kernels": "2.5 ms",
        "together": "252 ms",
    }
    assert shown.endswith("took 1.2 to 1.6 times it")
    assert report.as_dict(found, "tiny")["compiled"]["roofline"]["communication"] == 0.05


def test_a_step_that_does_not_fit_says_how_much_is_missing(settings, compiler):
    compiler(dataclasses.replace(COMPILED, peak=SIZE + 10**9, room=10**9, fits=False, collectives=[]))
    found = plan_topology(settings, NO_DATA, topology_named("v5e:2x4"))
    assert report.format_plan(found, "tiny").endswith("it does NOT fit: the compiler lacks 1.00 GB")
    assert report.as_dict(found, "tiny")["compiled"]["fits"] is False


def test_without_the_compiler_exact_figures_and_the_roofline_remain(settings, monkeypatch):
    monkeypatch.setattr(planning, "missing_compiler", lambda chip: "install the extra compile-tpu")
    found = plan_topology(settings, NO_DATA, topology_named("v5e:2x4"))
    assert found.compiled is None
    lines = report.format_plan(found, "tiny").splitlines()
    assert lines[-1] == "not compiled for v5e:2x4: install the extra compile-tpu"
    assert "step of at least" in lines[-2]
    assert any("at the peak" in line and "estimated from shapes" in line for line in lines)


def test_the_report_says_what_is_exact(planned):
    lines = report.format_plan(planned, "tiny").splitlines()
    assert lines[0] == "tiny: 16 pairs a step on 8 devices (data 8 x fsdp 1 x tensor 1)"
    assert "every question 24 tokens, every answer 24: not read" in lines[3]
    told = {line.split("  ")[1].strip(): line.split()[-1] for line in lines if line.startswith("  ")}
    assert told["parameters"] == told["optimizer state"] == told["batch"] == "exact"
    assert max(map(len, lines)) <= 130
    assert report.as_dict(planned, "tiny")["chips"]["v4"]["parameters"] == TABLE


def test_sizes_and_times_in_the_unit_that_suits_them():
    assert [report.size(count) for count in (5, 2_300, 45_600_000, 1.234e9, 3.21e11)] == [
        "5 B", "2.30 kB", "45.6 MB", "1.23 GB", "321 GB",
    ]  # fmt: skip
    assert [report.seconds(value) for value in (0.0012, 0.25, 3.0, 119)] == ["1.2 ms", "250 ms", "3.00 s", "119.00 s"]
    assert [report.seconds(value) for value in (150, 3000, 7200, 1e6)] == [
        "2.5 minutes", "50 minutes", "2.0 hours", "278 hours",
    ]  # fmt: skip
