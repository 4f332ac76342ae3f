"""A run on a mixture, end to end, on a tiny tower."""

import json

import numpy as np
import pytest
from helpers import whole_and_resumed
from tiny_bert import tiny_recipe

from endx_jax.experiment.prepare import prepare_run


@pytest.fixture
def config(tiny_bert, pairs_csv, tmp_path):
    more = tmp_path / "more.csv"
    more.write_text("question,answer\n" + "".join(f"who is dog {n},dog {n} sat\n" for n in range(10)))
    config = tiny_recipe(tiny_bert, pairs_csv, encoder="none")
    config.data.mixture = ((str(more), 3.0),)
    return config


def test_the_stream_of_a_run_draws_from_both(config, tmp_path):
    prepared = prepare_run(config, tmp_path / "run")
    drawn = np.concatenate([prepared.stream.example_ids(step) for step in range(1000)])
    first, second = prepared.stream.pairs.sizes
    assert second == 10
    np.testing.assert_allclose((drawn >= first).mean(), 0.75, atol=0.01)


def test_batches_of_one_set_with_prompts_of_their_own(config, tmp_path):
    path, weight = config.data.mixture[0]
    config.data.mixture = ((path, weight, "dogs: ", "about "),)
    config.data.mixture_batches = "one_set"
    prepared = prepare_run(config, tmp_path / "run")
    train, (first, _) = prepared.data.train, prepared.stream.pairs.sizes
    for step in range(20):
        drawn = prepared.stream.example_ids(step)
        assert len(set(drawn >= first)) == 1
    assert {text for text in train.questions if "who" in text} == {f"dogs: who is dog {n}" for n in range(10)}
    assert {f"about dog {n} sat" for n in range(10)} < set(train.candidates)


@pytest.mark.slow
def test_a_run_on_a_mixture_is_resumed_exactly(config, tmp_path):
    config.evaluation.min_questions = (2, 50)
    whole, parts = whole_and_resumed(config, tmp_path)
    assert list(whole) == [1, 2, 3, 4, 5, 6]
    assert whole == parts
    assert json.loads((tmp_path / "whole" / "config.json").read_text())["data"]["mixture"][0][1] == 3.0
    found = json.loads((tmp_path / "whole" / "results.json").read_text())["evaluations"]
    pools = {entry["pool"]: entry["questions"] for entry in found if entry["system"] == "trained"}
    assert list(pools) == ["all", "answers>=2", "answers>=2-alone"]  # no answer has fifty questions
    assert 2 <= pools["answers>=2"] == pools["answers>=2-alone"] < pools["all"]
    assert (tmp_path / "whole" / "evaluation" / "test" / "answers-at-least-2" / "trained.run.trec").is_file()
