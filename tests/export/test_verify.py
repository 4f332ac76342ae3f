import dataclasses
import json

import numpy as np
import pytest
from helpers import one_line_error
from safetensors.numpy import load_file, save_file

from endx_jax.export import verify
from endx_jax.export.run import export
from endx_jax.export.towers import plain


def read_report(folder):
    return json.loads((folder / "export_report.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["stablehlo", pytest.param("sentence-transformers", marks=pytest.mark.reference)])
def test_an_export_is_the_model_in_a_process_of_its_own_and_a_damaged_one_is_not(models, tmp_path, monkeypatch, kind):
    monkeypatch.setattr(verify, "sample_texts", lambda workdir: list(verify.HARD_TEXTS))
    output = tmp_path / "out"
    report = export(models["ade_spl"], kind, output, tolerance=1e-5)
    assert report.passed
    assert read_report(output) == json.loads(json.dumps(dataclasses.asdict(report)))
    assert report.texts == len(verify.HARD_TEXTS)
    assert max(report.largest_difference.values()) <= 1e-5
    assert "endx_jax" in report.versions
    assert len(report.versions) > 1
    # One weight, a little off.
    file = next(file for file in sorted(output.rglob("model.safetensors")) if file.stat().st_size > 10_000)
    weights = load_file(file)
    name = next(name for name in weights if "embedding" in name)
    weights[name] = weights[name] * np.float32(1.01)
    save_file(weights, file)
    report = verify.verify(kind, output, plain(models["ade_spl"]), 1e-5)
    assert not report.passed
    assert max(report.largest_difference.values()) > 1e-4


def test_an_export_that_differs_is_put_aside_and_named(models, tmp_path, monkeypatch):
    monkeypatch.setattr(verify, "sample_texts", lambda workdir: ["the cat", "who"])
    model, output = models["sde"], tmp_path / "out"
    export(model, "sentence-transformers", output)
    before = (output / "export_report.json").read_bytes()
    ours, off = {}, 0.0

    def elsewhere(kind, folder, texts, prompts):
        if not ours:
            ours.update(verify.reference(plain(model), texts, dict.fromkeys(prompts, "")))
        return {side: found + np.float32(off) for side, found in ours.items()}, {"torch": "0"}

    monkeypatch.setattr(verify, "encoded_elsewhere", elsewhere)
    monkeypatch.setattr("endx_jax.export.run.check_runtime", lambda kind: None)
    for off in (0.001, np.nan):
        with one_line_error(rf"differ from the model's by {off}, more than --tolerance=1e-05; see .*out.failed"):
            export(model, "sentence-transformers", output, tolerance=1e-5)
        assert (output / "export_report.json").read_bytes() == before
        report = read_report(tmp_path / "out.failed")
        assert (report["passed"], report["tolerance"]) == (False, 1e-5)
        assert sorted(folder.name for folder in tmp_path.iterdir()) == ["out", "out.failed"]


def test_texts_are_the_runs_own_and_others_where_those_are_few(trained_workdir):
    own = verify.sample_texts(trained_workdir)
    assert own[: len(verify.HARD_TEXTS)] == list(verify.HARD_TEXTS)
    assert any(text.startswith("the mat of") for text in own)
    assert len(own) == len(verify.sample_texts(None)) == len(verify.HARD_TEXTS) + verify.TEXTS
    assert len(set(own)) > verify.TEXTS
