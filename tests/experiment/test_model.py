"""The model of a run, what its workdir must hold to make it again, and its card."""

import dataclasses
import json
import re
import shutil
import time

import chex
import jax
import numpy as np
import pytest
from helpers import mesh_of, written
from refusals import check_refusal
from tiny_bert import tiny_recipe, write_tiny_bert, write_usage
from tiny_modules import write_routes

import endx_jax
from endx_jax.experiment import finalize as finals
from endx_jax.experiment import workdir as workdirs
from endx_jax.experiment.config import resolve
from endx_jax.experiment.model import build_model
from endx_jax.experiment.model_card import card_text
from endx_jax.experiment.run import prepare_run, run
from endx_jax.experiment.saved_model import best_params, read_model, save_description
from endx_jax.export.run import subject_of
from endx_jax.export.towers import plain
from endx_jax.inference.encode import TextEncoder
from endx_jax.models.dual_encoder import SIDES
from endx_jax.parallel import MeshSettings, make_mesh, put, state_shardings
from endx_jax.parallel.sharding import parameter_paths
from endx_jax.pretrained import load_encoder
from endx_jax.pretrained.settings import ModelSettings
from endx_jax.pretrained.stored import StoredArray
from endx_jax.settings import flattened
from endx_jax.training import checkpoints
from endx_jax.training.monitor import Monitor, NonFiniteLoss
from endx_jax.training.step import split_frozen


@pytest.fixture
def config(tiny_bert, pairs_csv):
    """A recipe with a GRU on the tiny BERT's token table."""
    config = tiny_recipe(tiny_bert, pairs_csv)
    config.model.encoder, config.model.new_encoder.width, config.model.pooling = "gru", 8, "multi_hop"
    return config


def test_a_workdir_describes_a_new_encoder_without_the_pretrained_folder(config, tmp_path):
    config.data.answer_length = 65  # a recurrent encoder does not limit it
    model = build_model(resolve(config))
    save_description(tmp_path, model)
    workdirs.write_config(tmp_path, model.settings, {"sha256": ""})
    names = ["config.json", "method.json", "tokenizer.json", "tokenizer_config.json"]
    assert sorted(file.name for file in (tmp_path / "model").iterdir()) == names
    again = read_model(tmp_path)
    assert again.dual_encoder == model.dual_encoder
    assert again.processors["answer"].length == 65
    chex.assert_trees_all_equal_shapes_and_dtypes(again.abstract_params, model.abstract_params)


def test_the_product_dtype_of_all_hosts_is_that_of_process_0(bert_config, tmp_path, monkeypatch):
    bert_config.model.product_dtype = "auto"
    for told in ("bfloat16", "float32"):  # by a process 0 on another CPU
        monkeypatch.setattr(finals, "broadcast", lambda decide, name, told=told: told)
        assert prepare_run(bert_config, tmp_path / "run").settings.model.product_dtype == told


def test_a_run_resumes_with_the_product_dtype_that_it_began_with(bert_config, tmp_path, set_cpu):
    prepared = prepare_run(bert_config, tmp_path / "old")
    workdirs.write_config(tmp_path / "old", prepared.settings, {"sha256": prepared.training.sha256})  # float32
    bert_config.model.product_dtype = "auto"
    set_cpu("avx512_bf16")
    begun, new = (prepare_run(bert_config, folder).settings for folder in (tmp_path / "old", tmp_path / "new"))
    assert (begun.model.product_dtype, new.model.product_dtype) == ("float32", "bfloat16")


@pytest.mark.parametrize(("score", "temperature"), [(-0.9, 0.05), (-1.5, 1.0)])
def test_the_settings_of_a_run_leave_nothing_open(bert_config, tmp_path, score, temperature):
    scored = {"pos_scores": [0.5], "neg": ["dog"], "neg_scores": [score]}
    rows = [{"query": f"who is {n}", "pos": [f"cat {n}"], **scored} for n in range(20)]
    bert_config.data.path = str(written(tmp_path / "scored.jsonl", rows))
    bert_config.model.product_dtype, bert_config.data.hard_negatives = "auto", -1
    bert_config.train.global_batch_size = 0
    bert_config.objective.distillation.loss = "listwise_kl"
    run = prepare_run(bert_config, tmp_path / "run")
    assert run.settings.objective.distillation.temperature == temperature
    assert not [name for name, value, declared in flattened(run.settings) if value == declared["auto"]]
    assert run.settings is run.model.settings is run.plan.settings


def test_the_token_table_of_a_new_encoder_can_be_frozen(config):
    config.optimizer.frozen = ("token_embedder/",)
    model = build_model(resolve(config))
    trained, frozen = (parameter_paths(part) for part in split_frozen(model.abstract_params, model.frozen))
    assert list(frozen) == ["dual_encoder/shared/token_embedder/embedding"]
    assert {path.split("/")[2] for path in trained} == {"encoder", "pooling"}


def test_a_run_that_begins_reads_only_its_parts_of_the_weights(bert_config):
    model, mesh = build_model(resolve(bert_config)), make_mesh(MeshSettings(fsdp=4, tensor=2))
    params = model.initial_params()
    assert all(isinstance(leaf, StoredArray) for leaf in jax.tree.leaves(params["dual_encoder"]["shared"]["encoder"]))
    placed = put(params, state_shardings(params, mesh))
    chex.assert_trees_all_equal(jax.device_get(placed), jax.tree.map(np.asarray, params))


def test_the_best_parameters_are_split_as_in_training_and_encode_alike(bert_workdir):
    model, texts = read_model(bert_workdir), ["the cat sat", "where is the dog", "mat", "who"]
    found = []
    for mesh in (mesh_of(1), make_mesh(MeshSettings(fsdp=4, tensor=2))):
        params, _ = best_params(bert_workdir, model, mesh)
        encoder = TextEncoder(model.dual_encoder, model.processors, mesh)
        found.append((encoder(params["dual_encoder"], "question", texts), encoder.identity(params["dual_encoder"])))
        kernel = params["dual_encoder"]["shared"]["encoder"]["layers_0"]["mlp_up"]["kernel"]
    assert kernel.addressable_shards[0].data.shape == (kernel.shape[0] // 4, kernel.shape[1] // 2)
    np.testing.assert_allclose(found[1][0], found[0][0], atol=1e-6)
    assert found[1][1] == found[0][1]


MEAN, CLS = "Transformer Pooling", "Transformer-b Pooling-cls"
PLAIN, TANH, WIDER = f"{MEAN} Dense-6", "Transformer-b Pooling Dense-6-tanh", "Transformer-b Pooling Dense-7"
BIASED = "Transformer-b Pooling Dense-6-bias"


@pytest.mark.parametrize(
    ("sides", "unset", "settings"),
    [
        ((MEAN, CLS), "model.pooling", {"pooling": "first"}),
        ((PLAIN, TANH), "model.projection_function", {"projection": 5}),
        ((TANH, PLAIN), "model.projection_function", {"projection": 5}),
        ((PLAIN, BIASED), "model.projection_bias", {"projection": 5}),
        ((TANH, MEAN), "model.projection", {"projection": 6, "projection_function": "tanh"}),
        ((MEAN, TANH), "model.projection", {"projection": 6, "projection_function": "tanh"}),
        ((PLAIN, WIDER), "model.projection", {"projection": 7}),
    ],
)
def test_folders_of_two_heads_need_the_settings_in_which_they_differ(tmp_path, pairs_csv, sides, unset, settings):
    config, names = tiny_recipe(tmp_path, pairs_csv), ("pretrained", "answer_pretrained")
    for name, modules in zip(names, map(str.split, sides), strict=True):
        config.model[name] = str(write_routes(tmp_path / name, modules, modules))
    config.model.sharing = "ade"
    check_refusal(lambda: build_model(resolve(config)), f"{unset} is", "/pretrained/", "/answer_pretrained/", "set")
    config.model.update(settings)
    model = build_model(resolve(config))
    read = jax.tree.map(np.asarray, model.initial_params())
    chex.assert_trees_all_equal_shapes_and_dtypes(read, model.abstract_params)


@pytest.mark.parametrize("sharing", ["sde", "ade_ste", "ade_fte", "ade_spl"])
def test_parameters_of_two_folders_are_not_shared(tmp_path, pairs_csv, sharing):
    config = tiny_recipe(write_routes(tmp_path / "one", PLAIN.split(), PLAIN.split()), pairs_csv)
    config.model.sharing, config.model.answer_pretrained = sharing, config.model.pretrained
    build_model(resolve(config))
    config.model.answer_pretrained = str(write_routes(tmp_path / "two", PLAIN.split(), PLAIN.split()))
    check_refusal(lambda: build_model(resolve(config)), "model.answer_pretrained", f"model.sharing={sharing}", "ade")


def test_training_keeps_the_prompts_of_the_pretrained_folder(tmp_path):
    folder = write_tiny_bert(tmp_path / "bert")
    write_usage(folder, prompts={"query": "ask: ", "document": "tell: "})
    for given, right in (
        ({}, ("ask: ", "tell: ")),
        ({"question_prompt": "q: "}, ("q: ", "tell: ")),
        ({"question_prompt": "none"}, ("", "tell: ")),
        ({"encoder": "transformer"}, ("", "")),
    ):
        sources = dict.fromkeys(SIDES, load_encoder(str(folder)))
        found = finals.prompts(ModelSettings(pretrained=str(folder), **given), sources)
        assert tuple(found.values()) == right


def test_a_finished_run_with_adapters_has_the_prompts_of_its_settings(pairs_csv, tmp_path):
    folder = write_usage(write_tiny_bert(tmp_path / "bert"), prompts={"query": "ask: ", "document": "tell: "})
    config = tiny_recipe(folder, pairs_csv)
    config.model.question_prompt, config.model.lora.rank = "none", 4
    model = build_model(resolve(config))
    save_description(tmp_path, model)
    workdirs.write_config(tmp_path, model.settings, {"sha256": ""})
    assert [read_model(tmp_path).processors[side].prompt for side in SIDES] == ["", "tell: "]


def test_a_loss_that_is_nan_leaves_the_checkpoint_that_was_being_written(tiny_bert, pairs_csv, tmp_path, monkeypatch):
    flush, hash_files = Monitor.flush, checkpoints.hash_files

    def flushed(self):
        if self._pending and self._pending[0] == 5:
            raise NonFiniteLoss("the loss is nan at step 5")
        flush(self)

    def slowly(*args):
        time.sleep(1)
        return hash_files(*args)

    monkeypatch.setattr(Monitor, "flush", flushed)
    monkeypatch.setattr(checkpoints, "hash_files", slowly)
    check_refusal(lambda: run(tiny_recipe(tiny_bert, pairs_csv, "none"), tmp_path / "run"), "step 5")
    assert checkpoints.newest_step(tmp_path / "run") == 4


@pytest.mark.filterwarnings("default")
def test_training_ends_with_a_card_whose_usage_works(trained_workdir, monkeypatch, capsys):
    from huggingface_hub import ModelCard

    card = ModelCard.load(trained_workdir / "model" / "README.md")
    assert card.data.library_name == "endx_jax"
    measures = json.loads((trained_workdir / "results.json").read_text())["systems"]["trained"]
    assert {found.metric_type: found.metric_value for found in card.data.eval_results}["mrr"] == measures["mrr"]
    assert "One tower encodes questions and answers as 32-dimensional vectors of unit norm" in card.text
    assert f"endx_jax {endx_jax.__version__}, jax " in card.text
    code = re.search(r"```python\n(.*?)```", card.text, re.DOTALL)[1]
    monkeypatch.chdir(trained_workdir / "model")
    exec(compile(code, "README.md", "exec"), {})
    assert len(re.findall(r"-?\d\.\d+", capsys.readouterr().out)) == 2


@pytest.fixture(scope="module")
def subject(trained_workdir):
    return subject_of(plain(endx_jax.load(trained_workdir)), str(trained_workdir))


def front_matter(card):
    return card.split("---\n")[1].splitlines()


def test_the_model_folder_of_a_run_is_known_as_the_run_s(trained_workdir, tmp_path, monkeypatch):
    assert endx_jax.load(trained_workdir / "model").source.workdir == trained_workdir
    monkeypatch.chdir(trained_workdir / "model")
    assert endx_jax.load(".").source.workdir == trained_workdir
    copied = shutil.copytree(trained_workdir / "model", tmp_path / "model")
    assert endx_jax.load(copied).source.workdir is None


def test_a_run_tells_its_data_recipe_and_results(subject, trained_workdir, tiny_bert, pairs_csv):
    card = card_text(subject, "sentence-transformers")
    assert front_matter(card)[:2] == ["library_name: sentence-transformers", "pipeline_tag: sentence-similarity"]
    assert "Data: `pairs.csv` (questions: " in card
    counts = json.loads((trained_workdir / "data.json").read_text())["questions"]
    assert f"{counts['train']} train" in card
    assert "optimizer.learning_rate: 0.001" in card
    measures = json.loads((trained_workdir / "results.json").read_text())["systems"]
    row = next(line for line in card.splitlines() if "| trained |" in line)
    assert f"| {measures['trained']['mrr']:.3f} | {measures['trained']['mrr@10']:.3f} |" in row
    for path in (trained_workdir, tiny_bert.parent, pairs_csv.parent):
        assert str(path) not in card
    assert "no record of the training data of `bert`" in card
    assert not any(line.startswith("base_model") for line in front_matter(card))


def test_a_run_whose_model_is_the_one_before_training_tells_that_ones_results(subject, trained_workdir, tmp_path):
    results = json.loads((trained_workdir / "results.json").read_text())
    for name in ("config.json", "data.json", "results.json"):
        shutil.copy(trained_workdir / name, tmp_path / name)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "endx.json").write_text('{"system": "untrained"}')
    card = card_text(dataclasses.replace(subject, workdir=tmp_path), "sentence-transformers")
    assert f"value: {results['systems']['untrained']['mrr']}" in card
    assert "before training" in card


def test_the_card_names_the_training_data_of_minilm(subject):
    named = dataclasses.replace(subject, workdir=None, loaded_from="all-MiniLM-L6-v2")
    card = card_text(named, "sentence-transformers")
    assert "base_model:\n- sentence-transformers/all-MiniLM-L6-v2\n" in card
    assert "SQuAD 2.0, Natural Questions" in card
    assert "not zero-shot" in card
    assert "## Training" not in card
    assert "Exported by endx_jax without further training" in card


def test_both_checkpoints_and_an_earlier_run_are_told(subject, trained_workdir, tmp_path):
    config = json.loads((trained_workdir / "config.json").read_text())
    config["model"] |= {"answer_pretrained": "org/other-bert", "init_from": "/home/me/runs/before"}
    config["data"]["mixture"] = [["/home/me/more.csv", 1.0, "query: "]]
    config["evaluation"]["sets"] = ["/home/me/beir/nfcorpus:test"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    shutil.copy(trained_workdir / "data.json", tmp_path / "data.json")
    card = card_text(dataclasses.replace(subject, workdir=tmp_path), "sentence-transformers")
    assert "no record of the training data of `bert`" in card
    assert "no record of the training data of `org/other-bert`" in card
    assert "base_model:\n- org/other-bert\n" in card
    assert "from the best parameters of the run `before`" in card
    assert 'data.mixture: [["more.csv", 1.0, "query: "]]' in card
    assert 'evaluation.sets: ["nfcorpus:test"]' in card
    assert "/home/me" not in card


def test_a_run_without_results_has_no_table(subject, trained_workdir, tmp_path):
    for name in ("config.json", "data.json"):
        shutil.copy(trained_workdir / name, tmp_path / name)
    card = card_text(dataclasses.replace(subject, workdir=tmp_path), "stablehlo")
    assert "## Training" in card
    assert "## Results" not in card
    assert f"JAX {jax.__version__} wrote these programs" in card
