import json

import pytest


def test_measures_our_import(start, tmp_path):
    file = tmp_path / "result.json"
    start("startup", "import", "--no-peer", "--repeats=1", f"--json={file}")
    rows = json.loads(file.read_text())["results"]
    assert [row["what"] for row in rows] == ["import endx_jax", "import endx_jax.experiment.run"]
    assert rows[0]["seconds"] < rows[1]["seconds"]


@pytest.mark.slow
def test_measures_first_steps(start, tiny_bert, pairs_csv):
    for package in ("sentence_transformers", "datasets", "accelerate"):
        pytest.importorskip(package, reason="the extra [reference] is not installed")
    config = {
        "model.pretrained": tiny_bert,
        "data.path": pairs_csv,
        "data.question_length": 24,
        "data.answer_length": 24,
        "data.validation_fraction": 0.2,
        "train.global_batch_size": 16,
    }
    overrides = [f"--config.{key}={value}" for key, value in config.items()]
    table = start("startup", "step", "--step_repeats=1", *overrides)
    assert [line.split("|")[1].strip() for line in table.splitlines()[2:]] == [
        "first step, cold",
        "first step, warm",
        "first step, sentence-transformers",
    ]
