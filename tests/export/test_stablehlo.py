import dataclasses
import json
import re
import runpy
import sys

import jax
import numpy as np
import pytest
from helpers import write_files
from refusals import check_refusal
from tiny_bert import vocabulary, write_tiny_bert
from tiny_models import TEXTS, make_model

import endx_jax
from endx_jax.export.stablehlo import write_stablehlo
from endx_jax.export.towers import plain
from endx_jax.inference.encode import TextEncoder

pytest.importorskip("flatbuffers", reason="flatbuffers, which jax.export writes with, is not installed")

NAMES = ("ade_spl", "t5", "gru", pytest.param("sde", marks=pytest.mark.slow))


@pytest.fixture(scope="module")
def written(export_with):
    return export_with(write_stablehlo)


def program(folder):
    return jax.export.deserialize(bytearray((folder / "tower.stablehlo").read_bytes()))


@pytest.mark.parametrize("name", NAMES)
def test_one_program_for_all_platforms_and_any_shape(written, name):
    exported = program(written[name])
    assert exported.platforms == ("cpu", "cuda", "tpu")
    *_, ids, mask = exported.in_avals
    assert [str(size) for size in ids.shape] == [str(size) for size in mask.shape] == ["b", "l"]
    # Nothing of one vendor's: the assertions are of the shapes, and JAX before 0.10 has erf as a call that XLA expands.
    assert set(re.findall(r"custom_call @([\w.]+)", exported.mlir_module())) <= {"shape_assertion", "mhlo.erf"}
    assert "bf16" not in exported.mlir_module()


def test_products_are_exact_on_every_device(written):
    products = [line for line in program(written["t5"]).mlir_module().splitlines() if "stablehlo.dot_general" in line]
    assert len(products) > 10
    assert all("precision = [HIGHEST, HIGHEST]" in line for line in products)


def test_weights_are_held_once_and_named_for_who_uses_them(written):
    from safetensors.numpy import load_file

    weights = load_file(written["ade_spl"] / "model.safetensors")
    assert {name.partition("/")[0] for name in weights} == {"shared", "question", "answer"}
    assert [name for name in weights if name.startswith("shared/")] == ["shared/projection/kernel"]
    assert (written["ade_spl"] / "tower.stablehlo").stat().st_size < 200_000


def test_nothing_of_this_machine_is_in_a_program(written):
    assert b".py" not in (written["t5"] / "tower.stablehlo").read_bytes()
    assert jax.config.jax_traceback_in_locations_limit > 0  # as it was


@pytest.mark.parametrize("name", NAMES)
def test_its_example_makes_the_same_embeddings(written, expected, name):
    encode = runpy.run_path(str(written[name] / "encode.py"))["encode"]
    for side in ("question", "answer"):
        np.testing.assert_allclose(encode(side, TEXTS, batch_size=4), expected[name][side], atol=2e-6)


def test_its_example_is_a_program(written, expected, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["encode.py", "answer", *TEXTS[:2]])
    runpy.run_path(str(written["gru"] / "encode.py"), run_name="__main__")
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    np.testing.assert_allclose(printed, expected["gru"]["answer"][:2], atol=2e-6)


def test_loading_an_export_names_what_to_do_instead(written):
    check_refusal(lambda: endx_jax.load(written["gru"]), "encode.py", "endx_jax")


@pytest.mark.slow
def test_towers_of_two_shapes_are_two_programs(models, tiny_bert, tmp_path):
    model = plain(make_model(tiny_bert, sharing="ade"))
    towers, processors, mesh = model.encoder.model, model.encoder.processors, model.encoder.mesh
    towers = dataclasses.replace(towers, answer=towers.answer.clone(normalize=False))
    write_stablehlo(tmp_path, dataclasses.replace(model, encoder=TextEncoder(towers, processors, mesh)))
    assert sorted(file.name for file in tmp_path.glob("*.stablehlo")) == [
        "tower_answer.stablehlo",
        "tower_question.stablehlo",
    ]
    encode = runpy.run_path(str(tmp_path / "encode.py"))["encode"]
    np.testing.assert_allclose(np.linalg.norm(encode("question", ["the cat"])), 1, rtol=1e-5)
    assert np.linalg.norm(encode("answer", ["the cat"])) > 1.1


def test_tokens_without_a_row_and_special_tokens_in_texts_are_those_of_the_model(tmp_path):
    folder = write_tiny_bert(tmp_path / "model")
    spec, config = (json.loads((folder / name).read_text()) for name in ("tokenizer.json", "tokenizer_config.json"))
    image = spec["added_tokens"][-1] | {"id": len(vocabulary()), "content": "<image>", "special": False}
    tokenizer = {"tokenizer.json": spec | {"added_tokens": [*spec["added_tokens"], image]}}
    write_files(folder, tokenizer | {"tokenizer_config.json": config | {"split_special_tokens": True}})
    with pytest.warns(UserWarning, match="states no pooling"):
        model = endx_jax.load(folder)
    write_stablehlo(tmp_path, plain(model))
    encode = runpy.run_path(str(tmp_path / "encode.py"))["encode"]
    texts = ["the <image> cat", "a [SEP] dog", "the cat"]
    np.testing.assert_allclose(encode("question", texts), model.encode_query(texts), atol=2e-6)
