"""Property tests: whatever the files of a workdir hold, reading them gives values or one line."""

import contextlib
import json
from unittest import mock

import pytest
from fuzzing import damaged_json, damaged_json_lines, fuzzed, only_user_errors
from helpers import one_line_error
from hypothesis import given

from endx_jax.experiment import workdir as workdirs
from endx_jax.experiment.comparison import read_per_question
from endx_jax.experiment.config import resolve
from endx_jax.methods.config import base_config, load_recipe
from endx_jax.ranking.results import read_results
from endx_jax.training import checkpoints, metric_log

CONFIG = resolve(base_config()).as_dict()
MIXED = CONFIG | {"data": CONFIG["data"] | {"path": "a", "mixture": [["b", 1.0]]}}
MIXED["model"] = MIXED["model"] | {"layer_weights": [0.5, 0.5]}
RESULTS = {
    "systems": {"bm25": {"mrr": 0.5}},
    "evaluations": [
        {"pool": "answers", "system": "trained", "direction": "question_to_answer", "candidates": 30}
        | {"metrics": {"mrr": 0.5, "recall@1": 0.25}}
    ],
}
MANIFEST = {"step": 2, "metrics": {"mrr": 0.5}, "sha256": {"a": "b"}}
LOG = b'{"step": 1, "loss": 1.0}\n{"step": 2, "loss": 0.5}\n{"step": 3, "mrr": 0.5}\n'
QUESTIONS = b'{"id": "a", "question": 0, "mrr": 0.5}\n{"id": "b", "question": 1, "mrr": 1.0}\n'


def encoded(value) -> bytes:
    return json.dumps(value).encode()


@fuzzed
@given(
    contents=damaged_json(encoded(MIXED))
    | damaged_json(encoded(resolve(load_recipe("minilm_pairs").get_config()).as_dict()))
    | damaged_json(encoded(resolve(load_recipe("vae_squad").get_config()).as_dict()))
)
def test_the_config(tmp_path, contents):
    (tmp_path / workdirs.CONFIG).write_bytes(contents)
    with only_user_errors():
        settings = workdirs.read_config(tmp_path)
        assert resolve(settings.as_dict()) == settings


@fuzzed
@given(contents=damaged_json(encoded({"sha256": "ab", "questions": {"train": 5}})))
def test_the_data(tmp_path, contents):
    (tmp_path / workdirs.DATA).write_bytes(contents)
    with only_user_errors():
        workdirs.read_data(tmp_path)


@fuzzed
@given(contents=damaged_json_lines(LOG))
def test_the_log(tmp_path, contents):
    (tmp_path / metric_log.FILE).write_bytes(contents)
    with only_user_errors():
        metric_log.MetricLog(tmp_path, resume_step=2).close()
    assert all(line["step"] <= 2 for line in metric_log.read_metrics(tmp_path / metric_log.FILE))


@fuzzed
@given(contents=damaged_json(encoded(RESULTS)))
def test_the_results(tmp_path, contents):
    (tmp_path / workdirs.RESULTS).write_bytes(contents)
    (tmp_path / "trained.per_question.jsonl").write_bytes(QUESTIONS)
    with only_user_errors():
        read_results(tmp_path / workdirs.RESULTS)
    with only_user_errors():
        read_per_question(tmp_path)


@fuzzed
@given(contents=damaged_json_lines(QUESTIONS))
def test_the_measures_of_each_question(tmp_path, contents):
    (tmp_path / "trained.per_question.jsonl").write_bytes(contents)
    with only_user_errors():
        read_per_question(tmp_path)


@fuzzed
@given(contents=damaged_json(encoded(MANIFEST)))
def test_the_manifest_of_a_checkpoint(tmp_path, contents):
    (tmp_path / checkpoints.FOLDER / "2").mkdir(parents=True, exist_ok=True)
    (tmp_path / checkpoints.MANIFESTS).mkdir(exist_ok=True)
    (tmp_path / checkpoints.MANIFESTS / "2.json").write_bytes(contents)
    with only_user_errors():
        assert checkpoints.best_step(tmp_path, "mrr") in (2, None)
        checkpoints.find_damage(tmp_path, 2)


@pytest.mark.parametrize(
    ("contents", "message"), [("[]", "must be an object, not a list"), ("", "column 1: broken JSON")]
)
def test_an_empty_file_and_a_list_are_refused(tmp_path, contents, message):
    (tmp_path / workdirs.CONFIG).write_text(contents)
    (tmp_path / workdirs.DATA).write_text(contents)
    for name, read in ((workdirs.CONFIG, workdirs.read_config), (workdirs.DATA, workdirs.read_data)):
        with one_line_error(f"{name}.* {message}|{name}, {message}"):
            read(tmp_path)


def test_an_error_of_a_workdir_in_a_bucket_names_the_bucket_and_not_the_local_copy(monkeypatch):
    monkeypatch.setattr(workdirs, "BucketLock", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(workdirs, "Mirror", lambda url, folder, skip: mock.MagicMock(folder=folder))
    with (
        one_line_error("^gs://bucket/a/run/data.json: no 'sha256' among 'other'$"),
        workdirs.opened("gs://bucket/a/run") as home,
    ):
        (home / "data.json").write_text('{"other": 1}')
        workdirs.read_data(home)
