"""Merging: means of parameters against NumPy, what is refused, and that the result is a model like any other."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import endx_jax
from endx_jax.files import sha256_of
from endx_jax.inference.merging import merge_models

LAYER = "shared/encoder/layers_0/mlp_up/kernel"


@pytest.fixture
def other(bert_workdir, tmp_path):
    """A copy of the model of a finished run with other values of one parameter."""
    return changed(bert_workdir, tmp_path / "other", lambda tensors: tensors[LAYER].fill(3.0))


def changed(workdir, folder, change, **described):
    """Returns a copy of a run's model folder with changed parameters and a changed description of its towers."""
    shutil.copytree(workdir / "model", folder)
    file, about = folder / "towers.safetensors", folder / "endx.json"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)
    stated = json.loads(about.read_text()) | {"weights_sha256": sha256_of(file)}
    stated["towers"] |= described
    about.write_text(json.dumps(stated))
    return folder


def test_the_weighted_mean_of_two_models(bert_workdir, other, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    merge_models([str(bert_workdir), str(other)], "~/merged", [3, 1])
    first, merged = (load_file(f / "towers.safetensors") for f in (bert_workdir / "model", tmp_path / "merged"))
    np.testing.assert_allclose(merged[LAYER], 0.75 * first[LAYER] + 0.25 * 3.0, rtol=1e-6)
    for path in set(first) - {LAYER}:
        np.testing.assert_allclose(merged[path], first[path], rtol=1e-6, atol=1e-12)
    model = endx_jax.load(tmp_path / "merged")
    assert model.identity not in (endx_jax.load(bert_workdir).identity, endx_jax.load(other).identity)
    assert model.encode_query(["who"]).shape == (1, 32)


def test_a_model_merged_with_itself_is_the_same_and_replaces_an_older_merge(bert_workdir, other, tmp_path):
    run, file = changed(bert_workdir, tmp_path / "run", lambda tensors: None), tmp_path / "run" / "endx.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"hybrid": {"weight": 0.5}, "teacher": "t"}))

    def merged_with(second):
        merge_models([str(run), str(second)], tmp_path / "merged")
        about = json.loads((tmp_path / "merged" / "endx.json").read_text())
        return about["hybrid"], about["teacher"]

    assert merged_with(other) == (None, "")
    assert merged_with(run) == (None, "t")
    assert endx_jax.load(tmp_path / "merged").identity == endx_jax.load(bert_workdir).identity


def test_a_run_is_merged_with_its_pretrained_model(bert_workdir, tiny_bert, tmp_path):
    run = changed(bert_workdir, tmp_path / "run", lambda tensors: None, normalize=False)
    merge_models([str(run), str(tiny_bert)], tmp_path / "merged", [0, 1])
    merged, pretrained = (endx_jax.load(place) for place in (tmp_path / "merged", tiny_bert))
    np.testing.assert_allclose(merged.encode(["who"]), pretrained.encode(["who"]), atol=1e-6)


def test_the_verb_s_model_is_exported(bert_workdir, other, tmp_path, endx):
    merged = tmp_path / "merged"
    said = endx("merge", str(bert_workdir), str(other), "--weights", "1", "3", f"--output={merged}").out
    assert said == f"{merged} holds the mean of 2 models; use it as --model={merged}\n"
    assert not (merged / "README.md").exists()  # of the first model, with its results
    endx("export", f"--model={merged}", f"--output={tmp_path / 'exported'}")
    assert "without further training" not in (tmp_path / "exported" / "README.md").read_text()
    assert endx_jax.load(tmp_path / "exported").identity == endx_jax.load(merged).identity
