import json
import runpy
import sys

import numpy as np
import pytest
from helpers import one_line_error
from tiny_models import TEXTS, embeddings

import endx_jax
from endx_jax.export.hugging_face import write
from endx_jax.export.towers import Towers
from endx_jax.inference.about import read_about


@pytest.fixture(scope="module")
def written(export_with):
    return export_with(write)


def files(folder):
    return {str(file.relative_to(folder)) for file in folder.rglob("*.safetensors")}


def test_one_folder_where_both_sides_have_one_encoder_else_one_each(written):
    assert files(written["sde"]) == {"model.safetensors", "projection/model.safetensors"}
    towers = {"question/model.safetensors", "answer/model.safetensors"}
    assert files(written["ade_spl"]) == towers | {"projection/model.safetensors"}
    assert files(written["ade"]) == towers | {f"{s}/projection/model.safetensors" for s in ("question", "answer")}


def test_the_config_is_the_encoders_own_and_names_the_class_of_the_weights(written, one_layer_bert):
    found = json.loads((written["sde"] / "config.json").read_text())
    original = json.loads((one_layer_bert / "config.json").read_text())
    assert found == original | {"architectures": ["BertModel"], "dtype": "float32"}
    assert json.loads((written["t5"] / "config.json").read_text())["architectures"] == ["T5EncoderModel"]


@pytest.mark.parametrize("name", [pytest.param("ade", marks=pytest.mark.slow), "t5"])
def test_endx_jax_reads_it_back(written, expected, models, name):
    model = endx_jax.load(written[name])
    found = embeddings(model)
    for side in found:
        np.testing.assert_allclose(found[side], expected[name][side], atol=1e-6)
    assert (model.prompts, model.cosine) == (models[name].prompts, models[name].cosine)
    assert model.identity == models[name].identity
    assert model.asymmetric is (name != "t5")


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    "name", [pytest.param("sde", marks=pytest.mark.slow), "ade_spl", pytest.param("t5", marks=pytest.mark.slow)]
)
def test_its_example_makes_the_same_embeddings_with_pytorch(written, expected, name):
    pytest.importorskip("torch", reason="torch is not installed")
    encode = runpy.run_path(str(written[name] / "encode.py"))["encode"]
    for side in ("question", "answer"):
        np.testing.assert_allclose(encode(side, TEXTS, batch_size=2), expected[name][side], atol=1e-5)
    assert encode("answer", []).shape == (0, expected[name]["answer"].shape[1])


@pytest.mark.filterwarnings("default")
def test_its_example_is_a_program(written, expected, monkeypatch, capsys):
    pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.setattr(sys, "argv", ["encode.py", "question", *TEXTS[:2]])
    runpy.run_path(str(written["sde"] / "encode.py"), run_name="__main__")
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("[")]
    np.testing.assert_allclose(printed, expected["sde"]["question"][:2], atol=1e-5)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("folder", "../../x", "answer: 'folder' is '../../x', which is not in the folder of the file"),
        ("projection", "/x", "answer: 'projection' is '/x', which is not in the folder of the file"),
        ("length", -1, "answer: 'length' is -1; it must be from 1 to"),
        ("prompt", None, "answer.prompt is None, a NoneType; it must be str"),
        ("colour", "red", "unknown setting .*answer.colour"),
    ],
)
def test_damaged_sides_are_refused(written, tmp_path, key, value, reason):
    about = json.loads((written["sde"] / "endx.json").read_text())
    about["sides"]["answer"][key] = value
    (tmp_path / "endx.json").write_text(json.dumps(about))
    with one_line_error(reason):
        read_about(tmp_path)


def test_a_missing_projection_is_refused(models, tmp_path):
    write(tmp_path, Towers.of(models["sde"]))
    (tmp_path / "projection" / "model.safetensors").unlink()
    with one_line_error("projection has no model.safetensors"):
        endx_jax.load(tmp_path)


def test_models_that_the_format_cannot_hold_are_refused(models, tmp_path):
    with one_line_error("the format hugging-face does not support a new encoder .*: use --format=stablehlo"):
        write(tmp_path, Towers.of(models["gru"]))
