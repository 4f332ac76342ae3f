"""Settings, data, runs and results that are refused, and the field and remedy that the one line of a refusal names."""

import functools

import numpy as np
import pytest
from helpers import written
from refusals import check_refusal
from small_beir import write_beir
from tiny_bert import WIDTH, tiny_recipe
from tiny_models import write_tiny_qwen3

import endx_jax
from endx_jax.data.settings import DataSettings
from endx_jax.data.sources import read_splits
from endx_jax.experiment.comparison import SystemResults, compare_systems, read_per_question
from endx_jax.experiment.config import resolve
from endx_jax.experiment.run import prepare_run, run
from endx_jax.methods.config import base_config
from endx_jax.methods.residual import ResidualSettings
from endx_jax.ranking.evaluate import EvaluationSettings

PAIRS = [(f"where is the cat {n}", f"the cat {n} sat") for n in range(60)]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"train": {"global_batchsize": 1}}, ["train.global_batchsize", "'global_batch_size'"]),
        ({"objective": {"name": "duel"}}, ["objective.name", "'duel'", "dual"]),
        ({"objective": {"name": ["dual"]}}, ["objective.name", "['dual']", "dual"]),
        ({"objective": []}, ["objective is []", "an object"]),
        ({"train": {"steps": 5}}, ["train.steps=5", "train.epochs=1.0", "set one"]),
        ({"train": {"steps": 10**400}}, ["train.steps is 10", "64 bits"]),
        ({"data": None}, ["data is None", "an object"]),
        ({"data": {"cloze_sentences": 2}}, ["data.cloze_sentences"]),
        ({"seed": -1}, ["seed", "-1"]),
        ({"optimizer": {"frozen": ["*a*"]}}, ["optimizer.frozen", "'*a*'", "regular expression"]),
        ({"optimizer": {"multipliers": [["(", 1.0]]}}, ["optimizer.multipliers", "'('", "regular expression"]),
        ({"objective": {"name": "endx", "cross_heads": 0}}, ["objective.cross_heads", "0", "at least 1"]),
        ({"optimizer": {"multipliers": [["a"]]}}, ["optimizer.multipliers[0]", "['a']", "2 items"]),
        ({"model": {"layer_weights": ["a"]}}, ["model.layer_weights[0]", "'a'", "float"]),
        ({"model": {"dropout": float("nan")}}, ["model.dropout", "nan", "a number"]),
    ],
)
def test_a_setting_is_named(changes, named):
    check_refusal(lambda: resolve(changes), *named)


@pytest.mark.parametrize(
    ("sets", "metric", "named"),
    [
        ((), "mats/mrr", ["evaluation.metric=mats/mrr", "evaluation.sets is empty"]),
        (("dogs",), "mats/mrr", ["evaluation.metric", "'mats'", "dogs, mean"]),
        (("a/mats", "b/mats"), "mrr", ["mats, mats", "rename files"]),
        (("data/validation",), "mrr", ["evaluation.sets", "validation", "rename files"]),
        (("mats",), "mats/speed", ["evaluation.metric", "'speed'"]),
    ],
)
def test_a_metric_and_sets_that_do_not_fit_are_named(sets, metric, named):
    check_refusal(lambda: EvaluationSettings(sets=sets, metric=metric), *named)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with pairs, documents, and data that is none."""
    folder = tmp_path_factory.mktemp("files")
    written(folder / "pairs.csv", "question,answer\nq1,a\nq2,b\n")
    written(folder / "docs.jsonl", [{"title": f"T{n}", "about": f"Text {n}."} for n in range(20)])
    return folder


SQUAD = {"pool": "answers", "group_size": 32, "hard_negatives": 1}  # as in recipes
PAIRS_CSV, DOCUMENTS = {"path": "pairs.csv"}, {"path": "docs.jsonl", "format": "documents"}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({}, ["data.path", "`docstrings`"]),  # as a recipe for one's own data, such as `minilm`
        ({"path": "reqa/squad"}, ["reqa/squad holds training and test data", "data.pool"]),
        ({"pool": "answers", "merge": True}, ["data.merge", "data.pool=paragraphs"]),
        ({"pool": "paragraphs", "merge": True, "test_path": "x"}, ["data.merge", "data.test_path"]),
        (PAIRS_CSV | {"test_path": "pairs.csv"}, ["all its questions are in the test data", "train on other"]),
        (PAIRS_CSV | {"pool": "answers"}, ["mrqa, natural_questions", "columns", "leave data.pool"]),
        (PAIRS_CSV | {"pool": "answers", "test_path": "pairs.csv"}, ["pairs.csv is not reading-comprehension data"]),
        (PAIRS_CSV | SQUAD, ["data.pool=", "data.group_size=1", "data.hard_negatives=-1"]),
        (DOCUMENTS, ["docs.jsonl, line 1", "'text'", "'title', 'about'"]),
        (DOCUMENTS | {"pool": "answers"}, ["docs.jsonl is read as documents", "leave data.pool empty"]),
        (DOCUMENTS | {"path": "nothing.jsonl"}, ["nothing.jsonl", "no such file"]),
        (DOCUMENTS | {"tokens": "here", "test_path": "dev.csv"}, ["data.format", "data.tokens"]),
        (PAIRS_CSV | {"tokens": "t", "max_test_questions": 5}, ["data.tokens", "data.max_test_questions"]),
        (DOCUMENTS | {"pool": "paragraphs", "merge": True}, ["data.format", "data.merge", "leave one empty"]),
    ],
)
def test_data_is_named_with_its_setting(files, monkeypatch, settings, named):
    monkeypatch.chdir(files)
    check_refusal(lambda: read_splits(DataSettings(**settings)), *named)


@pytest.mark.parametrize(
    ("pairs", "settings", "named"),
    [
        ([], {}, ["pairs is empty"]),
        ([*PAIRS, ("where is the dog", "")], {}, ["pairs[60]", "'answer' is empty"]),
        ([{"question": "q", "answer": {1}}], {}, ["pairs[0]", "'answer'", "{1}", "set", "pass text"]),
        ([("q", "a"), ("q", b"a")], {}, ["pairs[1]", "'answer'", "b'a'", "bytes", "pass text"]),
        ("pairs.csv", {}, ["pairs", "'pairs.csv'", "(question, answer) tuples"]),
        ([("a", "b", "c")], {}, ["pairs[0]"]),
        ([("a \ud83d", "b")], {}, ["pairs[0]", "'question'", "surrogate"]),
        (PAIRS, {"train.step": 3}, ["'train.step'", "'train.steps'"]),
        (PAIRS, {"objective.name": "late"}, ["objective.name=late", "dual", "config"]),
        (PAIRS, {"data.path": "x.csv"}, ["data.path", "leave it out of settings"]),
        (PAIRS, {"train.steps": "3"}, ["train.steps", "'3'", "int"]),
    ],
)
def test_pairs_are_named_before_anything_is_written(pairs, settings, named, config, tmp_path):
    settings = {"train.steps": 3} | settings
    check_refusal(lambda: endx_jax.train(pairs, tmp_path / "run", config=config, settings=settings), *named)
    assert not (tmp_path / "run").exists()


def test_a_call_that_is_refused_leaves_an_iterator_as_it_is(config, tmp_path):
    pairs = iter(PAIRS)
    check_refusal(lambda: endx_jax.train(pairs, tmp_path, config=config, settings={"train.step": 3}), "'train.step'")
    assert [*pairs] == PAIRS


EVALUATE, MINE = (functools.partial(endx_jax.evaluate, "x"), functools.partial(endx_jax.mine, bm25=True))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: EVALUATE(PAIRS), "data list path"),
        (lambda: MINE(PAIRS, "out"), "data list path"),
        (lambda: endx_jax.data.read(["a.csv", "b.csv"]), "path list"),
        (lambda: endx_jax.train(PAIRS, 12), "path int"),
        (lambda: EVALUATE("a.csv", min_questions=8), "min_questions 8 list"),
        (lambda: EVALUATE("a.csv", min_questions="8"), "min_questions '8' whole number"),
        (lambda: EVALUATE("a.csv", top="3"), "top '3' whole number"),
        (lambda: MINE("a.csv", "out", ranks="1-100"), "ranks '1-100' (1, 100)"),
        (lambda: MINE("a.csv", "out", ranks=("1", 2)), "first_rank '1' whole number"),
        (lambda: MINE("a.csv", "out", negatives="3"), "negatives '3' whole number"),
    ],
)
def test_an_argument_of_another_type_is_named(call, words):
    check_refusal(call, *words.split())


NEW = {"model.encoder": "transformer"}
LORA = {"model.lora.rank": 4, "model.encoder": ""}
UNSEEN = {"data.validation_fraction": 0.0}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"data.format": "documents"}, ["data.format=documents", "objective.name=dual"]),
        (
            {"model.pretrained": "nowhere", "data.path": "nowhere.csv"},
            ["model.pretrained: ", "nowhere", "and nowhere.csv"],
        ),
        ({"model.encoder": "", "data.answer_length": 65}, ["data.answer_length is 65", "64 positions"]),
        (NEW | {"model.new_encoder.heads": 4, "data.answer_length": 65}, ["data.answer_length is 65", "64 positions"]),
        (NEW | {"model.new_encoder.heads": 12}, ["model.new_encoder.heads is 12", f"{WIDTH}"]),
        ({"evaluation.sets": ("SET",)}, ["evaluation.sets, as PATH or PATH:SPLIT", "split: dev, test"]),
        (UNSEEN | {"evaluation.sets": ("SET:test",)}, ["which is empty", "mats:test/mrr"]),
        (UNSEEN | {"train.evaluate_every": 2, "train.patience": 1}, ["train.patience", "validation data"]),
        ({"train.evaluate_every": 0, "train.patience": 1}, ["train.evaluate_every"]),
        (LORA | {"model.lora.targets": "attn"}, ["targets", "'attn'", "encoder/"]),
        (LORA | {"model.lora.targets": "("}, ["model.lora.targets", "'('"]),
        ({"model.lora.targets": "mlp"}, ["model.lora.rank"]),
        ({"model.lora.adapter": "folder"}, ["model.lora.rank", "r of an adapter"]),
        ({"model.lora.rank": 4}, ["none of the linear layers", "trained without"]),
    ],
)
def test_a_setting_of_a_run_is_named_before_anything_is_written(changes, named, config, tmp_path):
    judged = [("q", "d", 1)]
    folder = write_beir(tmp_path / "mats", {"d": "a mat"}, {"q": "where?"}, dev=judged, test=judged)
    sets = [each.replace("SET", str(folder)) for each in changes.get("evaluation.sets", ())]
    config.update_from_flattened_dict(changes | ({"evaluation.sets": tuple(sets)} if sets else {}))
    check_refusal(lambda: run(config, tmp_path / "run"), *named)
    assert not (tmp_path / "run" / "config.json").exists()


def test_adapters_and_heads_exclude_each_other(tmp_path, pairs_csv):
    config = tiny_recipe(write_tiny_qwen3(tmp_path / "qwen3", num_hidden_layers=1), pairs_csv)
    residual = base_config(ResidualSettings())
    residual.update({name: config[name] for name in ("data", "model", "optimizer", "train")})
    residual.model.lora.rank = 4
    check_refusal(lambda: prepare_run(residual, tmp_path / "run"), "objective.name=residual", "model.lora.rank=0")


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ('{"id": "q", "mrr": "high"}', ["line 2", "'mrr'", "'high'", "a number"]),
        ('{"mrr": 1.0}', ["line 2", "'id'"]),
        ('{"id": "q0", "mrr": 1.0}', ["line 2", "'q0'", "line 1"]),
        ('{"id": "q", "mr', ["line 2, column"]),
    ],
)
def test_a_line_of_results_is_named(tmp_path, line, named):
    file = written(tmp_path / "x.per_question.jsonl", '{"id": "q0", "mrr": 0.5}\n' + line + "\n")
    check_refusal(lambda: read_per_question(file), str(file), *named)


def results(candidates=None, metrics=("mrr",), questions=("a", "b")):
    return SystemResults("x", questions, metrics, np.zeros((len(questions), len(metrics))), candidates)


def test_results_that_cannot_be_compared_are_named():
    check_refusal(lambda: compare_systems(results(3), results(4)), "x ranked 3 candidates", "x 4")
    check_refusal(lambda: compare_systems(results(), results(metrics=("map",))), "no common metric")
    check_refusal(lambda: compare_systems(results(), results(questions=("a", "b", "c"))), "1 of the 3", "'c'")
