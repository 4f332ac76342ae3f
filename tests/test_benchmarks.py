"""Tests of the scripts in benchmarks/: they start, some run at their smallest size, and the MFU formula is right."""

import argparse
import dataclasses
import importlib
import json
import os
import pathlib
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_squad import write_squad

FOLDER = pathlib.Path(__file__).parents[1] / "benchmarks"
SCRIPTS = sorted({path.stem for path in FOLDER.glob("*.py") if "--json" in path.read_text()} - {"common"})


@pytest.fixture(autouse=True)
def beside_common(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)


def start(monkeypatch, name: str, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    importlib.import_module(name).main()


def test_each_script_prints_its_help(monkeypatch, capsys):
    assert len(SCRIPTS) == 15
    for name in SCRIPTS:
        with pytest.raises(SystemExit) as exit:
            start(monkeypatch, name, "--help")
        assert exit.value.code == 0
        assert "--json" in capsys.readouterr().out


@pytest.mark.slow  # each side is a process of its own
def test_a_script_prints_a_table_and_writes_json(monkeypatch, tmp_path, capsys):
    pytest.importorskip("faiss", reason="faiss-cpu is not installed")
    file = tmp_path / "new" / "cpu.json"
    flags = ("--parts=search", "--peers=faiss", "--candidates=3000", "--repeats=1", f"--json={file}")
    start(monkeypatch, "cpu", f"--data={tmp_path}", *flags)
    assert "| faiss, IndexFlatIP |" in capsys.readouterr().out
    result = json.loads(file.read_text())
    assert [row["search, 100, ms"] > 0 for row in result["results"]] == [True, True]
    assert {"faiss-cpu", "endx_jax", "python"} <= result["versions"].keys()
    assert (result["machine"]["devices"], result["settings"]["candidates"]) == ([8, "cpu", "cpu"], 3000)


def test_each_side_of_a_comparison_has_a_new_process_in_each_round():
    sides = importlib.import_module("sides")
    case = sides.Case("functools", "partial", (os.getpid,))
    timings = sides.alternate({"one": case, "other": case}, 2).values()
    assert len({process for timing in timings for process in timing.results}) == 4
    assert [len(timing.seconds) for timing in timings] == [2 * (sides.CALLS - 1)] * 2


def test_a_comparison_stops_when_results_differ():
    check = importlib.import_module("cpu").check_same_work
    check({"endx_jax": 0.0, "peer": 9e-6})
    for different in (2e-4, float("nan")):
        with pytest.raises(SystemExit, match="differ"):
            check({"endx_jax": 0.0, "peer": different}, 1e-4)


# Softmax, norms and lookups are in the compiler's count and not in the formula, which counts matrix products only.
@pytest.mark.parametrize("name", ["minilm", "t5-small"])
def test_the_formula_of_mfu_agrees_with_the_flops_that_the_compiler_counts(name):
    mfu = importlib.import_module("mfu")
    whole, lengths = mfu.SHAPES[name], (64, 256)
    shape = dataclasses.replace(whole, config=dataclasses.replace(whole.config, layers=1))
    batch = jax.eval_shape(lambda: mfu.random_batch(shape, 8, lengths, seed=0))
    tower = shape.tower(jnp.dtype(jnp.float32))
    objective = mfu.DualObjective(mfu.DualEncoder(tower, tower), mfu.DualSettings())
    params = jax.eval_shape(lambda key: objective.init(key, objective.model.init(key)), jax.random.key(0))
    rng = jax.random.key(0, impl="threefry2x32")
    gradient = jax.jit(jax.grad(lambda p, b: objective(p, b, rng, jnp.int32(0))[0]))
    counted = gradient.lower(params, batch).cost_analysis()["flops"]
    assert mfu.flops(shape, 8, lengths) == pytest.approx(counted, rel=0.05)


def test_the_peak_of_a_device_is_that_of_its_own_data_sheet():
    mfu = importlib.import_module("mfu")
    kinds = ("NVIDIA H100 PCIe", "NVIDIA H100 80GB HBM3", "NVIDIA L4", "NVIDIA L40S")
    assert [mfu.peak_flops(kind) for kind in kinds] == [756e12, 989e12, 121e12, None]


def test_a_step_is_compiled_for_a_device_that_has_no_roofline(monkeypatch):
    mfu = importlib.import_module("mfu")
    monkeypatch.setattr(mfu, "devices_of", lambda topology: jax.devices())
    options = {"topology": "v5e:1x1", "batch": 4, "dtype": "float32", "seed": 0}
    row = mfu.compile_only("tiny", argparse.Namespace(question_length=8, answer_length=8, **options))
    assert (row["temporaries_gb"] > 0, row["roofline_ms"], row["kernels"]) == (True, 0, 0)


def test_vectors_that_are_kept_are_of_the_same_texts(tmp_path):
    def encode(texts):
        return np.float32([[len(text)] for text in texts])

    model = types.SimpleNamespace(width=1, name="m", identity="i", encode_query=encode, encode_document=encode)
    for text in ("long", "longer"):
        records = types.SimpleNamespace(questions=[text], candidates=[text])
        found = importlib.import_module("common").encode(model, records, tmp_path)
        np.testing.assert_array_equal(found, [[[len(text)]]] * 2)


def test_trainings_whose_names_have_dots_have_files_of_their_own(tmp_path):
    recipes = importlib.import_module("recipes")
    assert recipes.minutes_file(tmp_path / "lr3.5") == tmp_path / "lr3.5.minutes"


@pytest.mark.slow
def test_engines_pipeline_and_serving_run_at_their_smallest_size(monkeypatch, tiny_bert, tmp_path):
    pytest.importorskip("faiss", reason="faiss-cpu is not installed")
    data = (f"--data={write_squad(tmp_path / 'squad')}", f"--model={tiny_bert}")
    start(monkeypatch, "engines", *data, "--timed=2", f"--json={tmp_path / 'engines.json'}")
    found = {row["way"]: row for row in json.loads((tmp_path / "engines.json").read_text())["results"]}
    assert [row["recall@10 of exact"] for name, row in found.items() if name.startswith("faiss")] == [1.0] * 3
    start(monkeypatch, "pipeline", *data, "--no-peer", "--batches=2", "--repeats=1", f"--json={tmp_path / 'read.json'}")
    rows = json.loads((tmp_path / "read.json").read_text())["results"]
    assert [row["pairs_per_second"] > 0 for row in rows] == [True] * 3
    clients = ("--clients", 1, 2, "--seconds=0.3", "--warmup=0.1", "--rounds=1", "--documents=20")
    start(monkeypatch, "serving", *data, "--no_peer", *clients, f"--json={tmp_path / 'serving.json'}")
    rows = json.loads((tmp_path / "serving.json").read_text())["results"]
    assert [(row["clients"], row["failures"]) for row in rows] == [(1, 0), (2, 0)]


@pytest.mark.slow
def test_a_killed_run_ends_as_an_undisturbed_one(monkeypatch, tmp_path):
    start(monkeypatch, "soak", "--kills=1", "--processes=1", "--steps=20", f"--json={tmp_path / 'soak.json'}")
    found = json.loads((tmp_path / "soak.json").read_text())
    assert found["results"][0]["SIGKILL"] == 1
    assert all(run["state_bit_equal"] and run["every_step_once"] and run["losses_equal"] for run in found["runs"])
