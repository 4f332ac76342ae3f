"""A method from outside the package: examples/decoupled.py, which docs/adding-a-method.md shows."""

import dataclasses
import json
import operator
import pathlib
import re
import runpy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import logged_losses
from tiny_bert import tiny_recipe

from endx_jax.cli import evaluate, search, train
from endx_jax.methods import METHODS, find_method, method, register

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "decoupled.py"
LOSS = runpy.run_path(str(EXAMPLE))["decoupled_loss"]


@pytest.fixture(scope="module")
def command(tiny_bert, pairs_csv) -> list[str]:
    """The command line that trains it, without a workdir."""
    recipe = tiny_recipe(tiny_bert, pairs_csv, encoder="none")
    recipe.train.steps = 4
    names = "data.path data.question_length data.answer_length data.validation_fraction data.test_fraction data.cache "
    names += "model.pretrained model.encoder train.global_batch_size train.epochs train.steps train.log_every "
    names += "train.checkpoint_every train.compilation_cache"
    values = (f"--config.{name}={operator.attrgetter(name)(recipe)}" for name in names.split())
    return [f"--config={EXAMPLE}", "--config.objective.loss_tile=5", *values]


@pytest.fixture(scope="module")
def workdir(command, tmp_path_factory) -> pathlib.Path:
    """A finished run, stopped after two of four steps and resumed; its method is forgotten then."""
    folder = tmp_path_factory.mktemp("decoupled")
    train.main([*command, f"--workdir={folder}", "--config.train.stop_at_step=2"])
    assert not (folder / "results.json").exists()
    train.main([*command, f"--workdir={folder}"])
    del METHODS["decoupled"]
    return folder


def test_it_trains_and_evaluates(workdir):
    losses = logged_losses(workdir)
    assert len(losses) == 4
    assert np.isfinite([*losses.values()]).all()
    systems = json.loads((workdir / "results.json").read_text())["systems"]
    assert set(systems) == {"bm25", "untrained", "untrained hybrid", "trained", "hybrid"}


def test_its_model_evaluates_and_searches_without_its_code(workdir, pairs_csv, tmp_path, capsys):
    evaluate.main([f"--workdir={workdir}", f"--data={pairs_csv}", f"--output={tmp_path / 'evaluated'}"])
    assert "trained" in json.loads((tmp_path / "evaluated" / "results.json").read_text())["systems"]
    search.main([f"--workdir={workdir}", "where is the cat 3"])
    assert re.search("(mat|mats) of", capsys.readouterr().out)


def test_heads_of_a_registered_method_are_found_without_the_method():
    register(dataclasses.replace(find_method("residual"), name="mine"))
    del METHODS["mine"]
    assert method.HEADS.pop("mine")({"name": "mine", "head": {"width": 4}}, "settings")("question", 8).width == 4


@pytest.mark.parametrize("tile", [None, 2])
def test_its_loss_is_the_decoupled_one(tile):
    draw = np.random.default_rng(0)
    question, answer = draw.normal(size=(2, 3, 4)).astype(np.float32)
    ids = {"question_id": jnp.arange(3), "answer_id": jnp.array([0, 0, 1]), "positive_ids": jnp.array([[0], [0], [1]])}
    logits = question @ answer.T / 0.5
    rows = [logits[0, 2], logits[1, 2], np.log(np.exp(logits[2, 0]) + np.exp(logits[2, 1]))]
    compute = jax.jit(lambda q, a: LOSS(q, a, temperature=jnp.float32(0.5), ids=ids, tile=tile))
    found, _ = compute(question, answer)
    np.testing.assert_allclose(found, np.mean(rows - np.diag(logits)), rtol=1e-5)
