import json
import shutil

import chex
import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from helpers import logged_losses, mesh_of, one_device, trained_params, use_devices, whole_and_resumed
from refusals import check_refusal
from tiny_bert import LAYERS, tiny_recipe
from tiny_models import write_tiny_qwen3

import endx_jax
from endx_jax.experiment.compile_step import compile_and_restore
from endx_jax.experiment.config import resolve
from endx_jax.experiment.model import build_model
from endx_jax.experiment.run import prepare_run, run
from endx_jax.experiment.saved_model import load_pair_scorer, read_model
from endx_jax.export.run import export
from endx_jax.index.index import Index
from endx_jax.methods.config import base_config
from endx_jax.methods.endx import EndxSettings
from endx_jax.methods.pair import PairSettings
from endx_jax.models.lora import is_adapter
from endx_jax.parallel.sharding import parameter_paths, put, to_global
from endx_jax.pretrained.stored import open_file
from endx_jax.training.checkpoints import FOLDER

TEXTS = ["where is the cat", "a mat", "🙂"]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    return write_tiny_qwen3(tmp_path_factory.mktemp("tiny") / "qwen3", num_hidden_layers=1)


def recipe(pretrained, data, **lora):
    config = tiny_recipe(pretrained, data)
    config.data.question_length = config.data.answer_length = 8  # one length, for which programs are compiled
    config.model.dropout = 0.0
    config.model.lora.update({"rank": 4, "dropout": 0.1, **lora})
    config.optimizer.learning_rate = 0.01
    config.train.steps = 8
    return config


@pytest.fixture(scope="module")
def trained(decoder, pairs_csv, tmp_path_factory):
    """Its base is a folder of its own, which a test replaces."""
    folder = tmp_path_factory.mktemp("lora")
    with one_device():
        run(recipe(shutil.copytree(decoder, folder / "base"), pairs_csv), folder / "run")
    return folder / "run"


def test_adapters_learn(trained):
    losses = list(logged_losses(trained).values())
    assert np.mean(losses[-2:]) < np.mean(losses[:2]) - 0.05


def test_checkpoints_and_the_optimizer_hold_adapters_alone(trained, tmp_path):
    (step,) = {int(folder.name) for folder in (trained / FOLDER).iterdir()} & {8}
    stored = parameter_paths(ocp.PyTreeCheckpointHandler().metadata(trained / FOLDER / str(step) / "params").tree)
    assert stored
    assert all(map(is_adapter, stored))
    state = prepare_run(json.loads((trained / "config.json").read_text()), tmp_path).plan.state
    moments = parameter_paths(state.opt_state)
    held = {path for path, leaf in moments.items() if leaf.ndim}
    assert held
    assert all(map(is_adapter, held))
    count = sum(np.prod(leaf.shape) for leaf in stored.values())
    assert count == 4 * (32 + 32 + 32 + 16 + 32 + 16 + 32 + 32 + 3 * (32 + 48))


def test_the_model_of_a_run_is_merged_and_loads_exports_and_indexes_as_any(trained, tmp_path):
    model = endx_jax.load(trained)
    written = open_file(trained / "model" / "towers.safetensors")
    assert not any(map(is_adapter, written))
    assert Index(trained / "index.sqlite").snapshot.info.model["identity"] == model.identity
    found = read_model(trained)
    encoder = found.text_encoder(mesh_of(1))
    expected = encoder(trained_params(trained)["dual_encoder"], "question", TEXTS)
    np.testing.assert_allclose(model.encode_query(TEXTS), expected, atol=2e-6)
    initial = jax.tree.map(np.asarray, found.initial_params())
    untrained = encoder(initial["dual_encoder"], "question", TEXTS)
    assert np.abs(untrained - expected).max() > 0.01
    export(model, "sentence-transformers", tmp_path / "exported")
    exported = endx_jax.load(tmp_path / "exported")
    np.testing.assert_allclose(exported.encode_query(TEXTS), model.encode_query(TEXTS), atol=1e-6)


def test_a_run_on_another_base_is_not_resumed(trained, decoder, pairs_csv, tmp_path):
    workdir, base = shutil.copytree(trained, tmp_path / "run"), trained.parent / "base"
    (workdir / "results.json").unlink()
    write_tiny_qwen3(base, seed=1, num_hidden_layers=1)
    try:
        check_refusal(lambda: run(recipe(base, pairs_csv), workdir), "other weights of", "the base of its adapters")
    finally:
        shutil.copytree(decoder, base, dirs_exist_ok=True)


def test_a_run_starts_from_the_adapters_of_another_on_the_same_base(trained, decoder, pairs_csv):
    config = recipe(decoder, pairs_csv, adapter=str(trained / "model" / "adapter"))
    found = jax.tree.map(np.asarray, build_model(resolve(config)).initial_params())
    chex.assert_trees_all_equal(found, trained_params(trained))


def steps(config, workdir, count=2):
    """Losses of the first steps, and the parameters after them."""
    plan, state, step = compile_and_restore(prepare_run(config, workdir).plan)
    losses = []
    for n in range(count):
        batch = to_global(plan.stream[n], plan.mesh, config.train.global_batch_size)
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss"]))
    return losses, jax.device_get(state.params)


@pytest.mark.slow
@pytest.mark.parametrize(("chunk", "mesh"), [(4, {"fsdp": 2}), (4, {}), (0, {"fsdp": 2}), (2, {"fsdp": 4, "data": 2})])
def test_chunks_and_fsdp_change_no_loss(whole, decoder, pairs_csv, tmp_path, monkeypatch, chunk, mesh):
    use_devices(monkeypatch, int(np.prod([*mesh.values()])) if mesh else 1)
    config = recipe(decoder, pairs_csv)
    config.train.tower_chunk = chunk
    config.mesh.update({"data": 1, **mesh})
    losses, params = steps(config, tmp_path)
    np.testing.assert_allclose(losses, whole[0], rtol=2e-6)
    for path, leaf in parameter_paths(whole[1]).items():
        np.testing.assert_allclose(parameter_paths(params)[path], leaf, atol=2e-5, err_msg=path)


@pytest.fixture(scope="module")
def whole(decoder, pairs_csv, tmp_path_factory):
    """Three steps on one device without chunks."""
    with one_device():
        config = recipe(decoder, pairs_csv)
        config.train.tower_chunk = 0
        return steps(config, tmp_path_factory.mktemp("whole"))


@pytest.mark.slow
@pytest.mark.parametrize(("devices", "mesh"), [(1, {}), (8, {"fsdp": 8}), (4, {"data": 2, "fsdp": 2})])
def test_a_run_resumes_exactly(decoder, pairs_csv, tmp_path, monkeypatch, devices, mesh):
    use_devices(monkeypatch, devices)
    config = recipe(decoder, pairs_csv)
    config.mesh.update({"data": 1, **mesh})
    whole, parts = whole_and_resumed(config, tmp_path)
    assert whole == parts
    chex.assert_trees_all_equal(trained_params(tmp_path / "parts"), trained_params(tmp_path / "whole"))


@pytest.mark.slow
@pytest.mark.parametrize("settings", [EndxSettings(cross_heads=2), PairSettings(top=3, questions=4)])
def test_other_methods_train_adapters_too(tiny_bert, pairs_csv, tmp_path, settings):
    plain, config = recipe(tiny_bert, pairs_csv), base_config(settings)
    config.update({name: plain[name] for name in ("data", "model", "optimizer", "train")})
    config.train.steps = config.train.checkpoint_every = 2
    run(config, tmp_path)
    found = trained_params(tmp_path)
    leaves = parameter_paths(found["dual_encoder"])
    moved = [path for path, leaf in leaves.items() if path.endswith("lora_b") and leaf.any()]
    assert len(moved) == LAYERS * 6
    if settings.name == "endx":
        assert not any(map(is_adapter, open_file(tmp_path / "model" / "towers.safetensors")))
        assert endx_jax.load(tmp_path).identity == Index(tmp_path / "index.sqlite").snapshot.info.model["identity"]
    else:
        load_pair_scorer(tmp_path)(["where is the cat"], ["a mat"])


def test_the_base_may_be_bfloat16(decoder, pairs_csv, tmp_path):
    config = recipe(decoder, pairs_csv, base_dtype="bfloat16")
    prepared = prepare_run(config, tmp_path)
    plan = prepared.plan
    initial = put(prepared.model.initial_params(), plan.shardings.params)
    after, _ = jax.eval_shape(plan.train_step, plan.state, to_global(plan.stream[0], plan.mesh, 16))
    for params in (initial, after.params):
        for path, leaf in parameter_paths(params).items():
            low = not is_adapter(path) and leaf.ndim > 1
            assert leaf.dtype == ("bfloat16" if low else "float32"), path
    merged = prepared.model.without_adapters(initial, plan.mesh)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(merged)} == {"float32"}
