"""The verb on a run's own files; tests/experiment/test_comparison.py has files written by hand."""

import json

import pytest

from endx_jax.cli.entry import run_verb


def test_the_means_of_two_systems_are_those_of_the_run(trained_workdir, tmp_path, capsys):
    output = tmp_path / "new" / "compared.json"
    arguments = [str(trained_workdir), str(trained_workdir), "--systems=bm25,trained"]
    assert run_verb(["compare", *arguments, f"--output={output}"]) == 0
    assert "10,000 draws" in capsys.readouterr().out
    found = json.loads(output.read_text())
    results = json.loads((trained_workdir / "results.json").read_text())
    assert found["questions"] == results["evaluations"][0]["questions"]
    for side, system in (("first", "bm25"), ("second", "trained")):
        means = {row["measure"]: row[side] for row in found["measures"]}
        assert means == pytest.approx(results["systems"][system], abs=1e-6)
    for row in found["measures"]:
        assert row["low"] <= row["difference"] <= row["high"]
        assert row["second"] - row["first"] == pytest.approx(row["difference"], abs=1e-9)
