"""Models, folders and settings that an export refuses, and what the one line of a refusal names."""

import dataclasses
import pathlib
import subprocess

import numpy as np
import pytest
from refusals import check_refusal
from tiny_models import make_model
from tiny_modules import write_routes

import endx_jax
from endx_jax.export import verify
from endx_jax.export.run import export
from endx_jax.export.sentence_transformers import NAME
from endx_jax.export.stablehlo import STABLEHLO

LATE = {"pooling": "tokens", "projection": 4}
EXPAND = {"skip": ("cat", "x"), "expand": 12}


@pytest.mark.parametrize(
    ("settings", "kind", "options", "named"),
    [
        ({"encoder": "none"}, NAME, {}, ["token vectors without an encoder", "--format=stablehlo"]),
        ({"layer_weights": (0.5, 0.5, 0.0)}, NAME, {}, ["layer_weights", "--format=stablehlo"]),
        ({"encoder": "gru", "new_encoder": {"width": 8}}, NAME, {}, ["a new encoder", "--format=stablehlo"]),
        ({"pooling": "multi_hop", "multi_hop": {"hops": 2}}, NAME, {}, ["multi-hop pooling", "--format=stablehlo"]),
        ({"projection": 8}, NAME, {"truncate_dim": 9}, ["--truncate-dim is 9", "from 1 to 8"]),
        ({"projection": 8}, STABLEHLO, {"truncate_dim": 3}, ["--truncate-dim", f"--format={NAME}"]),
        (LATE, NAME, {"truncate_dim": 2}, ["--truncate-dim", "one vector for each text"]),
        (LATE | {"sharing": "ade"}, NAME, {}, ["one tower", "model.sharing=sde"]),
        (LATE, STABLEHLO, {}, ["an embedding for each token", f"--format={NAME}"]),
        (LATE | {"tokens": EXPAND, "question_length": 8}, NAME, {}, ["8 tokens", "12", "data.question_length"]),
    ],
)
def test_a_model_is_refused_with_what_to_use_and_nothing_is_written(
    tiny_bert, tmp_path, settings, kind, options, named
):
    model = make_model(tiny_bert, **settings)
    check_refusal(lambda: export(model, kind, tmp_path / "out", **options), *named)
    assert list(tmp_path.iterdir()) == []


def test_what_would_not_be_read_back_is_refused(models, tiny_bert, tmp_path):
    late = make_model(tiny_bert, **LATE)
    late.params["shared"]["projection"]["bias"] = np.zeros(4, np.float32)
    check_refusal(lambda: export(late, NAME, tmp_path), "a bias or an activation", "train it")
    routes = write_routes(tmp_path / "routes", ["Transformer", "Pooling", "Normalize"], ["Transformer", "Pooling"])
    check_refusal(lambda: export(endx_jax.load(routes), NAME, tmp_path / "out"), "one side only", "--format=stablehlo")
    cut = dataclasses.replace(models["sde"], truncate_dim=4)
    check_refusal(lambda: export(cut, NAME, tmp_path / "out"), "tiny", "4 dimensions", "truncate_dim")


def test_other_folders_are_not_replaced(models, tmp_path):
    mine = tmp_path / "thesis.txt"
    mine.write_text("mine")
    check_refusal(lambda: export(models["sde"], NAME, tmp_path), "did not write", "name a new folder")
    check_refusal(lambda: export(models["sde"], NAME, mine), "thesis.txt is a file", "name a folder")
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("path", [".", "..", "/", "out/.."])
def test_a_path_without_the_name_of_a_folder_is_refused(models, tmp_path, monkeypatch, path):
    (tmp_path / "in").mkdir()
    monkeypatch.chdir(tmp_path / "in")
    check_refusal(lambda: export(models["sde"], NAME, pathlib.Path(path)), path, "name a folder")


def test_a_runtime_that_fails_is_one_line(tmp_path, monkeypatch):
    failed = subprocess.CompletedProcess([], 1, "", "Traceback ...\nKeyError: 'encoder.weight'\n")
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: failed)
    check_refusal(lambda: verify.encoded_elsewhere(NAME, tmp_path, ["a"]), "in its runtime: KeyError: 'encoder.weight'")
