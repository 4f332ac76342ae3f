import dataclasses

import pytest
from tiny_bert import tiny_recipe

from endx_jax.errors import EndxError
from endx_jax.experiment.config import resolve
from endx_jax.planning import plan as planning
from endx_jax.planning import report, written
from endx_jax.planning.chips import CHIPS, chip_named, chip_of, peak_flops
from endx_jax.planning.plan import changed, plan
from endx_jax.planning.roofline import Roofline, fits, roofline
from endx_jax.planning.subject import Texts

NO_DATA = Texts(None, "not read")


@pytest.fixture(scope="module")
def settings(tiny_bert, pairs_csv):
    config = tiny_recipe(tiny_bert, pairs_csv)
    config.train.tower_chunk = 0
    return resolve(config)


@pytest.fixture(scope="module")
def planned(settings):
    return plan(settings, NO_DATA, list(CHIPS.values()))


def small_chip(memory):
    return dataclasses.replace(CHIPS["v5e"], name="tiny", memory=memory)


def test_chips_are_found_by_name_and_by_kind():
    assert chip_named("h100") is CHIPS["H100"]
    with pytest.raises(EndxError, match="--chip=v7 is none of v4, v5e"):
        chip_named("v7")
    assert [chip_of(kind).name for kind in ("TPU v5 lite", "TPU v5p", "NVIDIA H100 80GB HBM3")] == [
        "v5e",
        "v5p",
        "H100",
    ]
    assert chip_of("cpu") is None
    assert (peak_flops("NVIDIA H100 PCIe"), peak_flops("NVIDIA H100 80GB HBM3"), peak_flops("cpu")) == (
        756e12, 989e12, None,
    )  # fmt: skip


def test_a_step_takes_as_long_as_its_slowest_part():
    line = Roofline(compute=1.0, memory=3.0, network=2.0)
    assert (line.seconds, line.bound) == (3.0, "memory")


def test_it_fits_what_the_runtime_leaves():
    chip = small_chip(1000)
    assert fits(920, chip)
    assert not fits(921, chip)


def test_all_chips_are_planned_and_the_first_that_fits_is_shown(planned):
    found = planned
    assert [one.chip.name for one in found.chips] == list(CHIPS)
    assert found.shown.chip.name == "v4"
    assert not found.alternatives
    work, chip = found.shown.estimate, CHIPS["v4"]
    line = roofline(work, chip)
    assert line.compute == work.flops / 275e12
    assert line.memory == work.moved / 1200e9
    assert line.network == sum(one.sent for one in work.traffic) / 300e9
    # The gradients of all parameters, round a ring of eight: 7 / 8 of them twice.
    gradients = next(one for one in work.traffic if one.what == "gradients")
    assert gradients.bytes == pytest.approx(work.memory.parameters, rel=1e-3)
    assert gradients.sent == pytest.approx(2 * 7 / 8 * gradients.bytes, rel=1e-3)


@pytest.mark.slow
def test_what_does_not_fit_is_changed_and_looked_at_again(settings, monkeypatch):
    tried = [{"mesh.fsdp": 8}, {"optimizer.name": "adafactor"}, {"mesh.fsdp": 3}]
    monkeypatch.setattr(planning, "changes", lambda *_: tried)
    # Its figures are those of a plan with that change.
    again = plan(changed(settings, {"mesh.fsdp": 8}), NO_DATA, [CHIPS["v4"]]).shown.estimate
    found = plan(settings, NO_DATA, [small_chip(int(again.memory.peak / 0.92) + 1)])
    assert not found.shown.fits
    peaks = [one.found.estimate.memory.peak for one in found.alternatives]
    assert peaks == sorted(peaks)
    by_change = {tuple(one.change): one for one in found.alternatives}
    fsdp = by_change["mesh.fsdp",]
    assert fsdp.found.fits
    assert fsdp.found.estimate == again
    assert not fsdp.changes_results
    assert by_change["optimizer.name",].changes_results
    text = report.text(found, "tiny")
    assert "what to change, on tiny" in text
    assert "--config.mesh.fsdp=8" in text
    assert "changes what is learned" in text


def test_what_may_help_is_known_from_the_settings(settings, planned):
    assert planning.changes(settings, planned.shown) == [
        {"mesh.fsdp": 8},
        {"model.remat": "full"},
        {"mesh.fsdp": 8, "model.remat": "full"},
        {"train.tower_chunk": 1},
        {"optimizer.name": "adafactor"},
        {"mesh.fsdp": 8, "model.remat": "full", "optimizer.name": "adafactor"},
    ]


def test_the_report_says_what_is_exact(planned):
    lines = report.text(planned, "tiny").splitlines()
    assert lines[0] == "tiny: 16 pairs a step on 8 devices (data 8 x fsdp 1 x tensor 1)"
    assert "every question 24 tokens, every answer 24: not read" in lines[2]
    told = {line.split("  ")[1].strip(): line.split()[-1] for line in lines if line.startswith("  ")}
    assert told["parameters"] == told["optimizer state"] == told["batch"] == told["embeddings"] == "exact"
    assert told["activations"] == told["together"] == "estimated"
    assert max(map(len, lines)) <= 130
    assert written.as_dict(planned, "tiny")["chips"]["v4"]["memory"]["parameters"] == 4 * 24128


def test_sizes_and_times_in_the_unit_that_suits_them():
    assert [report.size(count) for count in (5, 2_300, 45_600_000, 1.234e9, 3.21e11)] == [
        "5 B", "2.30 kB", "45.6 MB", "1.23 GB", "321 GB",
    ]  # fmt: skip
    assert [report.seconds(value) for value in (0.0012, 0.25, 3.0)] == ["1.2 ms", "250 ms", "3.00 s"]
