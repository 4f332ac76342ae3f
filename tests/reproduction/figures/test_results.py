import json

import pytest
from helpers import one_line_error

from reproduction.figures.study import Source, read_evaluations


@pytest.fixture
def workdir(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def write(file, *systems):
    file.parent.mkdir(parents=True, exist_ok=True)
    about = {"pool": "answers", "direction": "question_to_answer", "metrics": {"mrr": 0.5}}
    file.write_text(json.dumps({"evaluations": [{"system": name, **about} for name in systems]}))


def test_a_runs_own_results_come_before_later_ones(workdir):
    write(workdir / "evaluation" / "b" / "results.json", "later")
    write(workdir / "results.json", "bm25", "trained")
    found = read_evaluations(Source("run", str(workdir)))
    assert [entry["system"] for entry in found] == ["bm25", "trained", "later"]


def test_missing_or_damaged_results_are_named(workdir, tmp_path):
    source = Source("mine", str(workdir))
    with one_line_error(r"mine: .* has no results yet; endx evaluate --workdir="):
        read_evaluations(source)
    (workdir / "results.json").write_text("{}")
    with one_line_error("results.json: no 'evaluations'"):
        read_evaluations(source)
    with one_line_error("no workdir of a run"):
        read_evaluations(Source("mine", str(tmp_path / "nowhere")))
