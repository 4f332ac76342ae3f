"""Runs on word vectors with IDF, judged in both directions, and on a mixture."""

import json

import numpy as np
import pytest
from helpers import whole_and_resumed
from tiny_bert import tiny_recipe

import endx_jax
from endx_jax.data.batches.idf import idf_of_sides
from endx_jax.data.settings import DataSettings
from endx_jax.data.sources import read_splits
from endx_jax.experiment.run import prepare_run, run


@pytest.fixture(scope="module")
def finished(tmp_path_factory, pairs_csv):
    """Its workdir and what it was made from."""
    folder = tmp_path_factory.mktemp("words")
    words = ["where", "is", "the", "cat", "dog", "mat", "mats", "of", *map(str, range(60))]
    draw = np.random.default_rng(0)
    file = folder / "vectors.txt"
    file.write_text("".join(f"{word} {' '.join(f'{x:.3f}' for x in draw.normal(size=8))}\n" for word in words))
    config = tiny_recipe(file, pairs_csv)
    config.model.encoder, config.model.token_weights, config.model.dropout = "none", "idf", 0.0
    config.train.steps, config.evaluation.reverse = 2, True
    run(config, folder / "run")
    return folder / "run", config


def test_words_weigh_as_the_training_set_says_and_still_do_after_training(finished):
    workdir, config = finished
    model = endx_jax.load(workdir)
    train = read_splits(DataSettings(**config.data.to_dict())).train
    texts = {"question": train.questions, "answer": train.candidates}
    vocab_size = len(model.params["shared"]["token_embedder"]["embedding"])
    expected = idf_of_sides(texts, model.encoder.processors, dict.fromkeys(texts, vocab_size))["question"]
    np.testing.assert_array_equal(model.params["shared"]["token_weights"]["weight"], expected)
    assert len(np.unique(expected)) > 3
    before = np.loadtxt(config.model.pretrained, usecols=range(1, 9), dtype=np.float32)
    after = model.params["shared"]["token_embedder"]["embedding"]
    assert np.abs(after[2:10] - before[:8]).max() > 1e-4  # the vectors themselves are trained


def test_both_directions_are_in_the_results(finished):
    workdir, _ = finished
    found = json.loads((workdir / "results.json").read_text())["evaluations"]
    rows = {(row["direction"], row["system"]): row for row in found}
    assert len(rows) == len(found) == 8  # one way, both models are also fused with BM25
    forth, back = (rows[direction, "untrained"] for direction in ("question_to_answer", "answer_to_question"))
    assert (back["questions"], back["candidates"]) == (forth["candidates"], forth["questions"])
    assert (workdir / "model" / "README.md").read_text().count("| trained |") == 1  # of answers only
    runs = workdir / "evaluation" / "test"
    forward, reverse = (
        {tuple(line.split()[:4:2]) for line in (folder / "qrels.trec").read_text().splitlines()}
        for folder in (runs, runs / "answer_to_question")
    )
    assert reverse == {(answer, question) for question, answer in forward}
    assert (runs / "answer_to_question" / "trained.run.trec").exists()


@pytest.fixture
def config(tiny_bert, pairs_csv, tmp_path):
    more = tmp_path / "more.csv"
    more.write_text("question,answer\n" + "".join(f"who is dog {n},dog {n} sat\n" for n in range(10)))
    config = tiny_recipe(tiny_bert, pairs_csv, encoder="none")
    config.data.mixture = ((str(more), 3.0),)
    return config


def test_the_stream_of_a_run_draws_from_both(config, tmp_path):
    prepared = prepare_run(config, tmp_path / "run")
    drawn = np.concatenate([prepared.plan.stream.example_ids(step) for step in range(1000)])
    first, second = prepared.plan.stream.pairs.sizes
    assert second == 10
    np.testing.assert_allclose((drawn >= first).mean(), 0.75, atol=0.01)


def test_batches_of_one_set_with_prompts_of_their_own(config, tmp_path):
    path, weight = config.data.mixture[0]
    config.data.mixture = ((path, weight, "dogs: ", "about "),)
    config.data.mixture_batches = "one_set"
    prepared = prepare_run(config, tmp_path / "run")
    train, (first, _) = prepared.data.train, prepared.plan.stream.pairs.sizes
    for step in range(20):
        drawn = prepared.plan.stream.example_ids(step)
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
