"""A run on word vectors with IDF, judged in both directions."""

import json

import numpy as np
import pytest
from tiny_bert import tiny_recipe

import endx_jax
from endx_jax.data.batches.idf import idf_of_sides
from endx_jax.data.settings import DataSettings
from endx_jax.experiment.data import read_splits
from endx_jax.experiment.run import run


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
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
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


def test_the_vectors_themselves_are_trained(finished):
    workdir, config = finished
    before = np.loadtxt(config.model.pretrained, usecols=range(1, 9), dtype=np.float32)
    after = endx_jax.load(workdir).params["shared"]["token_embedder"]["embedding"]
    assert np.abs(after[2:10] - before[:8]).max() > 1e-4


def test_both_directions_are_in_the_results(finished):
    workdir, _ = finished
    found = json.loads((workdir / "results.json").read_text())["evaluations"]
    rows = {(row["direction"], row["system"]): row for row in found}
    assert len(rows) == len(found) == 7  # the trained model is also fused with BM25
    forth, back = (rows[direction, "untrained"] for direction in ("question_to_answer", "answer_to_question"))
    assert (back["questions"], back["candidates"]) == (forth["candidates"], forth["questions"])
    runs = workdir / "evaluation" / "test"
    forward, reverse = (
        {tuple(line.split()[:4:2]) for line in (folder / "qrels.trec").read_text().splitlines()}
        for folder in (runs, runs / "answer_to_question")
    )
    assert reverse == {(answer, question) for question, answer in forward}
    assert (runs / "answer_to_question" / "trained.run.trec").exists()
