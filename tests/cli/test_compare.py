"""The verb on a run's own files; tests/experiment/test_comparison.py has files written by hand."""

import json

import pytest


def test_the_means_of_two_systems_are_those_of_the_run(trained_workdir, tmp_path, endx):
    output = tmp_path / "new" / "compared.json"
    arguments = [trained_workdir, trained_workdir, "--systems=bm25,trained"]
    assert "fewer than 30 questions: no interval" in endx("compare", *arguments, f"--output={output}").out
    found = json.loads(output.read_text())
    results = json.loads((trained_workdir / "results.json").read_text())
    assert found["questions"] == results["evaluations"][0]["questions"]
    for side, system in (("first", "bm25"), ("second", "trained")):
        means = {row["measure"]: row[side] for row in found["measures"]}
        assert means == pytest.approx(results["systems"][system], abs=1e-6)
    for row in found["measures"]:
        assert row["low"] is row["high"] is row["p"] is None  # six questions
        assert row["second"] - row["first"] == pytest.approx(row["difference"], abs=1e-9)
