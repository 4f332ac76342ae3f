"""Runs of heads on a frozen tower: computed once, trained in stages, and then a model like any other."""

import dataclasses
import runpy

import chex
import jax
import numpy as np
import pytest
from helpers import times, trained_params
from refusals import check_refusal
from tiny_bert import WIDTH, tiny_recipe

import endx_jax
from endx_jax.cli.entry import run_verb
from endx_jax.experiment.config import resolve
from endx_jax.experiment.model import build_model
from endx_jax.experiment.run import prepare_run, run
from endx_jax.index.index import Index
from endx_jax.methods.residual import ResidualSettings
from endx_jax.numerics import unit_rows


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def config(tiny_bert, pairs_csv, cache):
    return recipe(tiny_bert, pairs_csv, cache)


def recipe(tiny_bert, pairs_csv, cache, head="fcrr", sides="question"):
    config = tiny_recipe(tiny_bert, pairs_csv)
    config.objective = dataclasses.asdict(ResidualSettings())
    config.data.cache = str(cache)
    config.model.encoder = "none"
    config.objective.head.update(names=head, sides=sides, width=8, filters=2)
    config.optimizer.learning_rate = 0.02
    config.train.steps = config.train.checkpoint_every = 4
    return config


@pytest.fixture(scope="module")
def first_stage(tmp_path_factory, tiny_bert, pairs_csv, cache):
    """A finished run of FCRR on questions."""
    workdir = tmp_path_factory.mktemp("first")
    run(recipe(tiny_bert, pairs_csv, cache), workdir)
    return workdir


def params_of(workdir):
    return trained_params(workdir)["dual_encoder"]


def test_only_the_head_is_trained_and_the_workdir_is_a_model_like_any_other(first_stage, config, capsys):
    before = jax.device_get(build_model(resolve(config)).initial_params())["dual_encoder"]
    after = params_of(first_stage)
    assert set(after) == {"shared", "question"}
    assert set(after["question"]) == {"head"}
    chex.assert_trees_all_equal(after["shared"], before["shared"])
    changes = jax.tree.map(lambda a, b: np.abs(a - b).max(), after["question"], before["question"])
    assert min(jax.tree.leaves(changes)) > 1e-4
    # From tokens on, the loaded model is what the run ranked with from vectors; its answers are the plain tower's.
    index, model = Index(first_stage / "index.sqlite"), endx_jax.load(first_stage)
    texts = [document.text for _, document in index.snapshot]
    answers = model.encode_document(texts)
    tokens = model.encoder.processors["answer"](texts).pad(np.arange(len(texts)), 24)
    base = np.einsum("blD,bl->bD", after["shared"]["token_embedder"]["embedding"][tokens.ids], tokens.mask)
    np.testing.assert_allclose(answers, unit_rows(base), atol=1e-5)
    found = index.snapshot.corpus.search(answers, k=1)
    np.testing.assert_array_equal(found.rows[:, 0], np.arange(len(index)))
    np.testing.assert_allclose(found.scores, 1, atol=1e-5)
    assert np.abs(model.encode_query(texts) - answers).max() > 1e-3
    assert run_verb(["search", f"--workdir={first_stage}", "where is the cat 3", "--top=2"]) == 0
    assert " 1  " in capsys.readouterr().out


def test_below_the_heads_nothing_is_computed_twice(first_stage, config, cache, tmp_path):
    before = times(cache, "vectors-*")
    assert len(before) == 6  # questions and answers to train on, validate with and report on
    run(config, tmp_path / "again")
    config.objective.head.update(names="convrr", sides="both")
    prepare_run(config, tmp_path / "heads")
    assert times(cache, "vectors-*") == before
    config.data.answer_length = 20
    prepare_run(config, tmp_path / "other")
    assert len(times(cache, "vectors-*")) > 6


@pytest.mark.slow
def test_the_next_stage_takes_everything_from_the_one_before(first_stage, config, tmp_path, capsys):
    config.model.init_from = str(first_stage)
    config.objective.head.update(names="fcrr+convrr", sides="both")
    config.optimizer.frozen = ("question/head/fcrr/",)
    run(config, tmp_path)
    shown = capsys.readouterr().out
    assert f"starts from: {first_stage}; new: answer/head/convrr, answer/head/fcrr, question/head/convrr\n" in shown
    assert "heads on questions and answers" in shown
    assert "of vectors that are computed once" in shown
    before, after = params_of(first_stage), params_of(tmp_path)
    chex.assert_trees_all_equal(after["question"]["head"]["fcrr"], before["question"]["head"]["fcrr"])
    assert set(after["answer"]["head"]) == {"fcrr", "convrr"}


def test_a_stage_with_another_head_below_is_refused(first_stage, config, tmp_path):
    config.model.init_from, config.objective.head.names = str(first_stage), "convrr"
    check_refusal(lambda: run(config, tmp_path), "model", "question/head/fcrr/hidden/bias")


@pytest.mark.parametrize(("kind", "works"), [("stablehlo", True), ("sentence-transformers", False)])
def test_heads_leave_as_programs_alone(first_stage, tmp_path, capsys, kind, works):
    pytest.importorskip("flatbuffers", reason="flatbuffers, which jax.export writes with, is not installed")
    output = tmp_path / "out"
    status = run_verb(["export", f"--workdir={first_stage}", f"--format={kind}", f"--output={output}"])
    if not works:
        assert status == 2
        assert "does not support a tower with head: use --format=stablehlo" in capsys.readouterr().err
        return
    texts = ["where is the cat", ""]
    found = runpy.run_path(str(output / "encode.py"))["encode"]("question", texts)
    assert found.shape == (2, WIDTH)
    assert "A question tower and an answer tower" in (output / "README.md").read_text()
    np.testing.assert_allclose(found, endx_jax.load(first_stage).encode_query(texts), atol=2e-6)
