"""A run of a pair classifier end to end, and what can be done with it."""

import json

import numpy as np
import pytest
from helpers import logged_losses, use_devices, written
from refusals import check_refusal
from tiny_bert import pair_recipe, write_tiny_bert

import endx_jax
from endx_jax.data.sets.splits import limit_questions
from endx_jax.data.sources import read_splits
from endx_jax.experiment.run import run
from endx_jax.experiment.saved_model import load_pair_scorer
from endx_jax.experiment.workdir import read_config
from endx_jax.methods.config import load_recipe
from endx_jax.models.products import product_dtype


@pytest.fixture
def config(tiny_bert, pairs_csv):
    return pair_recipe(tiny_bert, pairs_csv)


def test_it_trains_stops_goes_on_validates_and_reports(pair_workdir):
    lines = [json.loads(line) for line in (pair_workdir / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == [1, 2, 3, 4]
    assert {"loss", "pair_accuracy", "negatives", "tokens_per_second"} <= set(lines[0])
    assert 0 < lines[-1]["validation/mrr"] <= 1
    results = json.loads((pair_workdir / "results.json").read_text())
    assert list(results["systems"]) == ["bm25", "trained"]
    test = read_splits(read_config(pair_workdir).data).test
    assert results["evaluations"][0]["questions"] == 8 < len(test.questions)
    assert results["evaluations"][0]["candidates"] == len(test.candidates)
    assert not (pair_workdir / "index.sqlite").exists()
    first = (pair_workdir / "evaluation" / "test" / "trained.run.trec").read_text().splitlines()
    assert len(first) == 8 * len(test.candidates)


@pytest.mark.slow
def test_in_one_go_on_fewer_devices_the_losses_are_the_same(pair_workdir, config, tmp_path, monkeypatch):
    use_devices(monkeypatch, 2)
    config.train.tower_chunk = 4
    run(config, tmp_path)
    np.testing.assert_allclose([*logged_losses(tmp_path).values()], [*logged_losses(pair_workdir).values()], rtol=1e-5)


def test_its_scores_are_those_of_the_report(pair_workdir):
    settings = read_config(pair_workdir)
    test = limit_questions(read_splits(settings.data).test, 8)
    score = load_pair_scorer(pair_workdir)(test.questions, test.candidates)
    line = (pair_workdir / "evaluation" / "test" / "trained.run.trec").read_text().splitlines()[0].split()
    pair = [test.question_ids.index(line[0]), test.candidate_ids.index(line[2])]
    np.testing.assert_allclose(score(np.array([pair])), float(line[4]), rtol=1e-4)
    with product_dtype("bfloat16"):
        rounded = load_pair_scorer(pair_workdir)(test.questions, test.candidates)
    assert 1e-6 < abs(rounded(np.array([pair])) - score(np.array([pair])))[0] < 0.1


def test_requests_for_embeddings_are_refused_in_one_line(pair_workdir, tmp_path, endx):
    check_refusal(lambda: endx_jax.load(pair_workdir), "--rerank", "`endx evaluate`")
    corpus = written(tmp_path / "corpus.txt", "a\n")
    workdir, output = f"--workdir={pair_workdir}", f"--output={tmp_path / 'out'}"
    for verb in (
        ["export", workdir, output],
        ["serve", workdir],
        ["search", workdir, "who?"],
        ["encode", workdir, output, f"--corpus={corpus}"],
        ["evaluate", workdir, output],
    ):
        assert "holds a pair classifier" in endx(*verb, status=2).err
    assert not (tmp_path / "out").exists()


def test_pairs_longer_than_the_encoders_positions_are_refused_before_the_first_step(config, tmp_path):
    short = write_tiny_bert(tmp_path / "short", max_position_embeddings=40)
    config.model.pretrained = str(short)
    check_refusal(lambda: run(config, tmp_path / "run"), "47 tokens", "40 positions")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("recipe", ["bert_qa", "minilm_pairs"])
def test_recipes_read_the_pair_from_cls(recipe):
    config = load_recipe(recipe).get_config()
    assert (config.objective.name, config.model.pooling, config.model.sharing) == ("pair", "first", "sde")
    assert config.data.question_length + config.data.answer_length <= 512
