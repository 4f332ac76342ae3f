"""Validation on several sets during training, and early stopping, on a tiny tower."""

import contextlib
import io
import json
import re
import shutil
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers import raising
from small_beir import write_beir
from tiny_bert import tiny_recipe

from endx_jax.data.sets.records import Pools, RetrievalSet
from endx_jax.experiment.run import run
from endx_jax.methods.evaluation import add_validation, compare_with_untrained, validation
from endx_jax.metrics.significance import FEWEST
from endx_jax.ranking.evaluate import MEASURES, Evaluation, EvaluationSettings
from endx_jax.ranking.hybrid import Hybrid
from endx_jax.ranking.results import Results
from endx_jax.training.checkpoints import best_checkpoint
from endx_jax.training.hooks import EarlyStopping


@pytest.fixture(scope="module")
def beir(tmp_path_factory):
    """A BEIR folder of ten documents with judgements of two splits."""
    corpus = {f"d{n}": f"the mat of {n}" for n in range(10)}
    queries = {f"q{n}": f"where is the cat {n}" for n in range(10)}
    judged = [(f"q{n}", f"d{n // 2}", 1) for n in range(10)]
    return write_beir(tmp_path_factory.mktemp("sets") / "mats", corpus, queries, dev=judged[:4], test=judged[4:])


def logged(workdir) -> dict[int, dict[str, float]]:
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return {line.pop("step"): line for line in lines if any(key.startswith("validation/") for key in line)}


@pytest.fixture(scope="module")
def validated(tiny_bert, pairs_csv, beir, tmp_path_factory):
    """A run with two sets and a suite, and what it printed."""
    folder, shown = tmp_path_factory.mktemp("validated"), io.StringIO()
    for name, unjudged in (("one", "test"), ("two", "dev")):
        shutil.copytree(beir, folder / "suite" / name)
        (folder / "suite" / name / "qrels" / f"{unjudged}.tsv").unlink()
    config = tiny_recipe(tiny_bert, pairs_csv, encoder="none")
    config.evaluation.sets = (f"{beir}:dev", str(pairs_csv), str(folder / "suite"))
    config.evaluation.metric = "mats:dev/ndcg@10"
    config.train.evaluate_every = 2
    with contextlib.redirect_stdout(shown):
        run(config, folder / "run")
    section = json.loads((folder / "run" / "results.json").read_text())["validation"]
    return folder / "run", section, shown.getvalue()


def test_named_sets_are_validated_logged_and_select_the_checkpoint(validated):
    workdir, section, shown = validated
    found = logged(workdir)
    assert list(found) == [2, 4, 6]
    names = ("", "mats:dev/", "pairs.csv/", "suite/one/", "suite/two/", "suite/", "mean/")
    for metrics in found.values():
        assert set(metrics) == {f"validation/{name}{measure}" for name in names for measure in MEASURES}
    best = max(found, key=lambda step: (found[step]["validation/mats:dev/ndcg@10"], -step))
    assert best_checkpoint(workdir, "mats:dev/ndcg@10")[0] == section["step"] == best
    assert section["metrics"]["mats:dev"]["mrr"] == found[best]["validation/mats:dev/mrr"]
    assert "<h2>Validation, mats:dev/ndcg@10</h2>" in (workdir / "results.html").read_text()
    card = (workdir / "model" / "README.md").read_text()
    assert f"## Validation at step {best}\n\n| set | mrr |" in card
    assert f"| mats:dev | {found[best]['validation/mats:dev/mrr']:.3f} |" in card
    assert f"step 2/6: validation mats:dev/ndcg@10 {found[2]['validation/mats:dev/ndcg@10']:.4f}\n" in shown
    assert f"validation at step {best}:" in shown
    assert f"step {best}, the best by mats:dev/ndcg@10 in validation" in shown


def test_a_suite_is_the_mean_of_its_sets(validated):
    workdir, section, shown = validated
    metrics = logged(workdir)[2]

    def mean_of(*names):
        return pytest.approx(sum(metrics[f"validation/{name}/ndcg@10"] for name in names) / len(names))

    assert metrics["validation/suite/ndcg@10"] == mean_of("suite/one", "suite/two")
    assert metrics["validation/suite/one/ndcg@10"] != metrics["validation/suite/two/ndcg@10"]
    assert metrics["validation/mean/ndcg@10"] == mean_of("mats:dev", "pairs.csv", "suite")
    names = ["validation", "mats:dev", "pairs.csv", "suite/one", "suite/two", "suite", "mean"]
    assert [*section["metrics"]] == [*section["untrained"]] == names
    assert section["untrained"] != section["metrics"]
    assert "\nsuite/one, untrained " in shown
    losses = re.findall(r"\nwarning: on (.*) `trained` ranks below `untrained`, ndcg@10 ", shown)
    worse = [n for n in names if section["untrained"][n]["ndcg@10"] - section["metrics"][n]["ndcg@10"] >= 0.005]
    assert [name for name in losses if name != "the test set"] == worse


def test_the_mean_over_one_set_selects_checkpoints_if_it_is_asked_for():
    found = {"a.csv": SimpleNamespace(metrics=dict.fromkeys(MEASURES, 0.25))}
    evaluator: Any = SimpleNamespace(select=lambda records: records, evaluate=lambda *_: found)
    for metric, means in (("mean/mrr", [0.25]), ("a.csv/mrr", [])):
        settings = EvaluationSettings(metric=metric, sets=("a.csv",))
        validate = validation(evaluator, settings, None, {"a.csv": RetrievalSet.from_pairs([("q", "a")])})
        assert [value for name, value in validate({}).items() if name == "mean/mrr"] == means


class Scripted:
    """Evaluator whose metrics are those of a list, one call after the other."""

    def __init__(self, monkeypatch, values):
        self.calls = 0

        def validation(*arguments):
            def validate(params):
                self.calls += 1
                return {"mrr": values[self.calls - 1]}

            return validate

        monkeypatch.setattr("endx_jax.experiment.run.validation", validation)


def test_a_run_ends_after_validations_without_progress_and_resumes_exactly(config, tmp_path, monkeypatch, capsys):
    config.train.update(steps=12, evaluate_every=2, patience=2, keep_checkpoints=1)
    values = [0.3, 0.5, 0.4, 0.5, 0.9, 0.9]
    line = "early stopping at step 8: mrr is not above its 0.5000 of step 4 (train.patience)\n"
    # Stopped between the two validations without progress: the count goes on.
    Scripted(monkeypatch, values)
    config.train.stop_at_step = 7
    assert run(config, tmp_path / "parts") is None
    config.train.stop_at_step = 0
    Scripted(monkeypatch, values[3:])
    with monkeypatch.context() as patch:
        patch.setattr("endx_jax.experiment.run.report", raising(RuntimeError("killed")))
        with pytest.raises(RuntimeError, match="killed"):
            run(config, tmp_path / "parts")
    # Step 4 is the best; 6 and 8 are not above it, so the value of step 10 is never seen.
    assert list(logged(tmp_path / "parts")) == [2, 4, 6, 8]
    assert line in capsys.readouterr().out
    assert best_checkpoint(tmp_path / "parts", "mrr")[0] == 4
    # A run that was killed before its report makes no further step.
    again = Scripted(monkeypatch, [])
    assert run(config, tmp_path / "parts") is not None
    assert again.calls == 0
    assert line in capsys.readouterr().out


def test_early_stopping_counts_validations_and_not_steps():
    stopping = EarlyStopping("mrr", patience=2, every=10)
    stops = []
    for step, value in ((10, 0.5), (20, 0.4), (30, 0.6), (40, 0.6), (50, 0.5), (60, 0.7)):
        stopping.add(step, {"mrr": value, "map": 1.0})
        stops.append(stopping.stops_at(step))
    assert stops == [False, False, False, False, True, False]
    assert stopping.best == (60, 0.7)
    assert not EarlyStopping("mrr", patience=0, every=10, best=(10, 0.5)).stops_at(1000)
    assert EarlyStopping("mrr", patience=2, every=10, best=(15, 0.5)).stops_at(30)  # the best is between two


def test_without_sets_there_is_no_section_and_without_an_evaluation_before_training_none_of_it():
    results = Results("data", "test", Pools())
    add_validation(results, 4, {"mrr": 0.5})
    assert (results.sections, results.notes) == ({}, [])
    means = dict.fromkeys(MEASURES, 0.5)
    add_validation(results, 4, {f"mats/{name}": value for name, value in means.items()})
    assert results.sections == {"validation": {"step": 4, "metrics": {"mats": means}}}


def test_sets_on_which_training_made_the_model_worse_are_named():
    def warnings(after, before, fused=None, hybrid=None, count=32, **section):
        def evaluation(mrr):
            values = np.resize(np.asarray(mrr, np.float32), count)
            return Evaluation({"mrr": values}, np.ones((count, 1)), np.zeros((1, 1)), np.ones((1, 1)), 1)

        records = RetrievalSet(("q",), ("a",), ((0,),), ("q0",), ("d0",))
        results = Results("data", "test", Pools({"all": records}), sections={"validation": section}, hybrid=hybrid)
        results.add("trained", {"all": evaluation(after)})
        results.add("untrained", {"all": evaluation(before)})
        for system, values in (fused or {}).items():
            results.add(system, {"all": evaluation(values)})
        compare_with_untrained(results, "mrr")
        return results.notes

    assert warnings(0.5, 0.25) == warnings(0.5, 0.5) == []
    assert warnings([0.5, 0.5, 1, 0.25], [1, 0.5, 0.5, 0.5]) == []  # 0.56 after 0.63, within noise
    unchanged = {"set": {"mrr": 0.868}}
    assert warnings(0.5, 0.5, metrics={"set": {"mrr": 0.867}}, untrained=unchanged) == []
    (line,) = warnings(0.25, 0.5)
    assert line.startswith("warning: on the test set `trained` ranks below `untrained`, mrr 0.250 instead of 0.500: ")
    served = {"untrained hybrid": [0.5, 0.25, 0.5, 0.25], "hybrid": [1.0, 0.5, 1.0, 0.5]}
    (line,) = warnings(0.5, 0.5, fused=served)
    assert line.startswith("search before and after training (`untrained hybrid`, `hybrid`): mrr 0.375 and 0.750, ")
    (line,) = warnings(0.5, 0.5, fused=served | {"hybrid": [0.25, 0.5, 0.5, 0.25]})
    assert line.endswith(": it does not show that training changed search")
    (line,) = warnings(0.5, 0.5, fused=served, hybrid=Hybrid(2.4, questions=99))
    assert "the default before and 2.40 after" in line
    assert warnings(0.5, 0.5, fused=served, hybrid=Hybrid()) == warnings(0.5, 0.5, fused=served)
    assert warnings(0.25, 0.5, fused=served, count=FEWEST - 1) == []
    before = {"up": {"mrr": 0.4}, "down": {"mrr": 0.4}}
    (line,) = warnings(0.5, 0.25, metrics={"up": {"mrr": 0.6}, "down": {"mrr": 0.3}}, untrained=before)
    assert "on down `trained` ranks below `untrained`, mrr 0.300 instead of 0.400" in line
