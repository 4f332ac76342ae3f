import json
import types

import numpy as np
import pytest

from endx_jax.data.sets.records import RetrievalSet
from endx_jax.data.settings import DataSettings
from endx_jax.experiment.run import run
from endx_jax.experiment.served import Served, choose_served
from endx_jax.ranking.hybrid import Hybrid


@pytest.mark.parametrize(
    ("better", "questions"), [("untrained", 60), ("trained", 60), ("neither", 60), ("untrained", 20)]
)
def test_the_model_before_training_is_served_only_where_validation_shows_that_it_is_better(better, questions, capsys):
    pairs = [(f"ask {n}", f"say {n}") for n in range(questions + 40)]
    whole = RetrievalSet.from_pairs(pairs)
    parts = {"train": whole.subset(range(questions, len(pairs))), "validation": whole.subset(range(questions))}
    data = types.SimpleNamespace(**parts, test=whole.subset([]))
    towers = types.SimpleNamespace(normalize=True)
    evaluation = types.SimpleNamespace(metric="mrr")
    settings = types.SimpleNamespace(data=DataSettings(path="p"), model=towers, evaluation=evaluation)
    pools = []

    def encode(params, side, texts, progress):
        pools.append(len(texts))
        numbers = [int(text.split()[1]) for text in texts]  # one of the two confuses half of the questions
        wrong = side == "question" and params["name"] != better and better != "neither"
        return np.eye(200, dtype=np.float32)[[n - n % 2 if wrong else n for n in numbers]]

    model = types.SimpleNamespace(dual_encoder=types.SimpleNamespace(by_token=False))
    run = types.SimpleNamespace(data=data, settings=settings, model=model, encoder=encode)
    served = choose_served(run, {"name": "trained"}, lambda: {"name": "untrained"})
    chosen = "untrained" if (better, questions) == ("untrained", 60) else "trained"
    assert served.towers["name"] == served.about["system"] == chosen
    assert ("on 60 validation questions over 100 answers" in capsys.readouterr().out) == (questions == 60)
    if questions == 60:
        assert pools == [60, 100] * 2  # the train set's answers are searched too
        expected = {
            "untrained": "use the model before",
            "trained": "use the trained",
            "neither": "no difference is shown",
        }
        assert expected[better] in str(served)
    else:
        assert str(served).endswith(
            "which was not compared with that before training (20 validation questions are too few)"
        )
    assert served.trained == choose_served(run, {"name": "trained"}, None).hybrid
    assert (served.hybrid == served.trained) == (chosen == "trained")


def test_a_model_before_training_has_its_own_name_and_fusion(config, tmp_path, endx, monkeypatch):
    def untrained(run, trained, initial):
        return Served(initial(), Hybrid(2.0), Hybrid(0.25), {"system": "untrained", "questions": 0})

    monkeypatch.setattr("endx_jax.experiment.run.choose_served", untrained)
    results = run(config, tmp_path / "run")
    assert "\nhybrid: trained and BM25 over the whole pool, dense + 0.25 x BM25" in results.tables()
    described = json.loads((tmp_path / "run" / "model" / "endx.json").read_text())
    assert (described["system"], described["hybrid"]["weight"]) == ("untrained", 2.0)
    (tmp_path / "run" / "results.json").unlink()  # as of a run that was killed before it wrote them
    endx("evaluate", f"--workdir={tmp_path / 'run'}", f"--output={tmp_path / 'out'}")
    assert [*json.loads((tmp_path / "out" / "results.json").read_text())["systems"]] == ["bm25", "untrained", "hybrid"]
