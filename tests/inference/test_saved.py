"""The model folder of a run: what it holds, that it is enough, and how a damaged one is refused."""

import dataclasses
import json
import shutil

import chex
import jax
import numpy as np
import pytest
from refusals import check_refusal
from safetensors.numpy import load_file
from tiny_bert import tiny_recipe
from tiny_models import write_tiny_qwen3

import endx_jax
from endx_jax.experiment.config import resolve
from endx_jax.experiment.model import build_model
from endx_jax.experiment.saved_model import save_description, save_towers
from endx_jax.export.towers import in_float32
from endx_jax.inference.loading import model_of_run
from endx_jax.methods.dual import DualSettings
from endx_jax.methods.residual import HeadSettings, ResidualSettings
from endx_jax.parallel.mesh import MeshSettings, make_mesh
from endx_jax.parallel.sharding import parameter_paths, put, state_shardings

TEXTS = ["the cat sat on the mat", "where is the dog", "who"]


@pytest.fixture
def model_folder(bert_workdir, tmp_path):
    """A copy of the model folder of a finished run, and nothing else of it."""
    return shutil.copytree(bert_workdir / "model", tmp_path / "copied")


def test_the_model_folder_of_a_finished_run(model_folder):
    files = "README.md config.json endx.json method.json tokenizer.json tokenizer_config.json towers.safetensors"
    assert sorted(file.name for file in model_folder.iterdir()) == files.split()
    about = json.loads((model_folder / "endx.json").read_text())
    assert (about["format"], about["width"], about["towers"]["sharing"]) == ("towers", 32, "sde")
    assert not {"pretrained", "init_from"} & set(about["towers"])  # paths of the machine that trained
    tensors = load_file(model_folder / "towers.safetensors")
    assert tensors["shared/encoder/layers_0/mlp_up/kernel"].dtype == np.float32


def test_a_model_multiplies_as_its_run_did_unless_told(model_folder):
    towers(model_folder, product_dtype="bfloat16")
    own, told = endx_jax.load(model_folder), endx_jax.load(model_folder, product_dtype="float32")
    assert (own.product_dtype, told.product_dtype) == ("bfloat16", "float32")
    assert in_float32(own.encoder.model.answer) == in_float32(told.encoder.model.answer)  # what is exported
    towers(model_folder, product_dtype=None)  # as by earlier versions
    assert endx_jax.load(model_folder).product_dtype == "float32"
    check_refusal(lambda: endx_jax.load(model_folder, product_dtype="float16"), "product_dtype", "float16")


def test_the_model_folder_is_enough_and_gives_the_same_bits(model_folder, bert_workdir):
    run, copied = endx_jax.load(bert_workdir), endx_jax.load(model_folder)
    assert copied.identity == run.identity
    assert copied.source.workdir is None
    np.testing.assert_array_equal(copied.encode_query(TEXTS), run.encode_query(TEXTS))
    np.testing.assert_array_equal(copied.encode_document(TEXTS), run.encode_document(TEXTS))
    _, found = model_of_run(bert_workdir)
    loaded = parameter_paths(endx_jax.load(bert_workdir).params)
    assert {path: leaf.shape for path, leaf in found.items()} == {path: leaf.shape for path, leaf in loaded.items()}


@pytest.mark.parametrize(
    "settings",
    [
        {"encoder": "gru", "new_encoder": {"width": 8}, "pooling": "multi_hop", "sharing": "ade_spl", "projection": 6},
        {"normalize": True, "objective": ResidualSettings(head=HeadSettings("fcrr+convrr", "answer"))},
        {"remat": "full", "sharing": "ade", "question_prompt": " ask: "},
        {"layer_weights": (0.5, 0.125, 0.375), "token_weights": "idf"},
    ],
    ids=["gru", "heads", "remat", "layers"],
)
def test_every_kind_of_tower_is_written_and_read(bert_config, tmp_path, settings):
    bert_config.objective = dataclasses.asdict(settings.pop("objective", DualSettings()))
    bert_config.model.update(settings)
    model, mesh = build_model(resolve(bert_config)), make_mesh(MeshSettings(fsdp=4, tensor=2))
    if settings.get("token_weights"):
        weights = np.linspace(0, 1, model.sources["question"].config.vocab_size, dtype=np.float32)
        object.__setattr__(model, "token_weights", {"question": weights, "answer": weights})
    params = model.initial_params()["dual_encoder"]
    params = put(params, state_shardings(params, mesh))
    save_description(tmp_path, model)
    (tmp_path / "model" / ".towers.safetensors.x").touch()  # as a killed process leaves it
    save_towers(tmp_path, model, params, mesh)
    assert not [*(tmp_path / "model").glob(".*")]
    loaded = endx_jax.load(tmp_path)
    assert loaded.encoder.model == model.dual_encoder
    assert (json.loads((tmp_path / "model" / "endx.json").read_text())["method"] is None) == (not model.method.head)
    assert loaded.prompts == {side: processor.prompt for side, processor in model.processors.items()}
    chex.assert_trees_all_equal(jax.device_get(loaded.params), jax.device_get(params))
    assert loaded.identity == model.text_encoder(mesh).identity(params)


def test_a_model_folder_with_heads_of_an_earlier_version_is_loaded(config, tmp_path):
    """The entry of its `endx.json` is as a run of version 4f255c8 wrote it; heads need no import of their method."""
    config.objective = dataclasses.asdict(ResidualSettings(head=HeadSettings(sides="question", width=4)))
    model, mesh = build_model(resolve(config)), make_mesh(MeshSettings())
    save_description(tmp_path, model)
    save_towers(tmp_path, model, model.initial_params()["dual_encoder"], mesh)
    heads = {"names": "fcrr", "sides": "question", "width": 4, "filters": 16, "dropout": 0.1}
    rest = {"loss": "triplet", "margin": 0.2, "direction": "question_to_answer", "loss_tile": -1}
    change(tmp_path / "model", method={"name": "residual", "settings": {"name": "residual", "head": heads, **rest}})
    assert endx_jax.load(tmp_path).encoder.model == model.dual_encoder


def test_a_decoder_whose_folder_states_its_pooling_is_loaded_without_eos(pairs_csv, tmp_path):
    """Training appends no EOS to its texts, so loading must not either; the model folder holds no `modules.json`."""
    base = write_tiny_qwen3(tmp_path / "base")
    names = base / "tokenizer_config.json"
    names.write_text(json.dumps(json.loads(names.read_text()) | {"eos_token": None}))
    model, mesh = build_model(resolve(tiny_recipe(base, pairs_csv))), make_mesh(MeshSettings())
    save_description(tmp_path / "run", model)
    save_towers(tmp_path / "run", model, model.initial_params()["dual_encoder"], mesh)
    loaded = endx_jax.load(tmp_path / "run").encoder.processors["question"]
    assert loaded.tokenizer.same_ids(model.processors["question"].tokenizer)


def change(folder, **values):
    """Changes what `endx.json` says; None removes a key."""
    about = json.loads((folder / "endx.json").read_text()) | values
    (folder / "endx.json").write_text(json.dumps({key: value for key, value in about.items() if value is not None}))


def towers(folder, **values):
    stated = json.loads((folder / "endx.json").read_text())["towers"] | values
    change(folder, towers={key: value for key, value in stated.items() if value is not None})


def answer(place, **values):
    sides = json.loads((place / "endx.json").read_text())["sides"]
    change(place, sides=sides | {"answer": sides["answer"] | values})


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / "towers.safetensors").unlink(), "towers.safetensors missing"),
        (lambda folder: (folder / "towers.safetensors").write_bytes(b"other"), "sha256 endx.json"),
        (lambda folder: change(folder, format="hugging-face"), "version 1 towers export"),
        (lambda folder: change(folder, version=2), "version 1 towers export"),
        (lambda folder: change(folder, format=None), "version 1 towers export"),
        (lambda folder: change(folder, towers=None), "'towers' object"),
        (lambda folder: change(folder, towers=[1]), "towers 1 list"),
        (lambda folder: towers(folder, pooling="median"), "pooling is 'median'"),
        (lambda folder: change(folder, method={"name": "own"}), "'own' heads residual register"),
        (lambda folder: change(folder, method={"name": "dual", "settings": {}}), "'dual' residual"),
        (lambda folder: towers(folder, projection=5), "shared/projection/kernel none"),
        (lambda folder: towers(folder, sharing="ade"), "endx.json"),
        (lambda folder: answer(folder, length=9999), "answer 9999 64 positions"),
        (lambda folder: answer(folder, length=-1), "answer 'length' -1"),
        (lambda folder: answer(folder, folder="../../x"), "answer 'folder' '../../x'"),
        (lambda folder: answer(folder, program="/x"), "answer 'program' '/x'"),
        (lambda folder: answer(folder, prompt=None), "answer.prompt None str"),
        (lambda folder: answer(folder, colour="red"), "answer.colour"),
    ],
)
def test_a_damaged_model_folder_is_refused_in_one_line(model_folder, damage, words):
    damage(model_folder)
    check_refusal(lambda: endx_jax.load(model_folder), *words.split())
