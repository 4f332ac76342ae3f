import dataclasses
import json
import re
import shutil

import jax
import pytest

import endx_jax
from endx_jax.experiment.model_card import card_text
from endx_jax.export.towers import Towers


@pytest.mark.filterwarnings("default")
def test_training_ends_with_a_card_whose_usage_works(trained_workdir, monkeypatch, capsys):
    from huggingface_hub import ModelCard

    card = ModelCard.load(trained_workdir / "model" / "README.md")
    assert card.data.library_name == "endx_jax"
    measures = json.loads((trained_workdir / "results.json").read_text())["systems"]["trained"]
    assert {found.metric_type: found.metric_value for found in card.data.eval_results}["mrr"] == measures["mrr"]
    assert "One tower encodes questions and answers as 32-dimensional vectors of unit norm" in card.text
    assert f"endx_jax {endx_jax.__version__}, jax " in card.text
    code = re.search(r"```python\n(.*?)```", card.text, re.DOTALL)[1]
    monkeypatch.chdir(trained_workdir / "model")
    exec(compile(code, "README.md", "exec"), {})
    assert len(re.findall(r"-?\d\.\d+", capsys.readouterr().out)) == 2


@pytest.fixture(scope="module")
def towers(trained_workdir):
    return Towers.of(endx_jax.load(trained_workdir))


def front_matter(card):
    return card.split("---\n")[1].splitlines()


def test_a_run_tells_its_data_recipe_and_results(towers, trained_workdir, tiny_bert, pairs_csv):
    card = card_text(towers.subject, "sentence-transformers")
    assert front_matter(card)[:2] == ["library_name: sentence-transformers", "pipeline_tag: sentence-similarity"]
    assert "Data: `pairs.csv` (questions: " in card
    counts = json.loads((trained_workdir / "data.json").read_text())["questions"]
    assert f"{counts['train']} train" in card
    assert "optimizer.learning_rate: 0.001" in card
    measures = json.loads((trained_workdir / "results.json").read_text())["systems"]
    row = next(line for line in card.splitlines() if "| trained |" in line)
    assert f"| {measures['trained']['mrr']:.3f} | {measures['trained']['mrr@10']:.3f} |" in row
    for path in (trained_workdir, tiny_bert.parent, pairs_csv.parent):
        assert str(path) not in card
    assert "no record of the training data of `bert`" in card
    assert not any(line.startswith("base_model") for line in front_matter(card))


def test_the_card_names_the_training_data_of_minilm(towers):
    card = card_text(
        dataclasses.replace(towers, workdir=None, loaded_from="all-MiniLM-L6-v2").subject, "sentence-transformers"
    )
    assert "base_model:\n- sentence-transformers/all-MiniLM-L6-v2\n" in card
    assert "SQuAD 2.0, Natural Questions" in card
    assert "not zero-shot" in card
    assert "## Training" not in card
    assert "Exported by endx_jax without further training" in card


def test_both_checkpoints_and_an_earlier_run_are_told(towers, trained_workdir, tmp_path):
    config = json.loads((trained_workdir / "config.json").read_text())
    config["model"] |= {"answer_pretrained": "org/other-bert", "init_from": "/home/me/runs/before"}
    config["data"]["mixture"] = [["/home/me/more.csv", 1.0, "query: "]]
    config["evaluation"]["sets"] = ["/home/me/beir/nfcorpus:test"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    shutil.copy(trained_workdir / "data.json", tmp_path / "data.json")
    card = card_text(dataclasses.replace(towers, workdir=tmp_path).subject, "sentence-transformers")
    assert "no record of the training data of `bert`" in card
    assert "no record of the training data of `org/other-bert`" in card
    assert "base_model:\n- org/other-bert\n" in card
    assert "from the best parameters of the run `before`" in card
    assert 'data.mixture: [["more.csv", 1.0, "query: "]]' in card
    assert 'evaluation.sets: ["nfcorpus:test"]' in card
    assert "/home/me" not in card


def test_a_run_without_results_has_no_table(towers, trained_workdir, tmp_path):
    for name in ("config.json", "data.json"):
        shutil.copy(trained_workdir / name, tmp_path / name)
    card = card_text(dataclasses.replace(towers, workdir=tmp_path).subject, "stablehlo")
    assert "## Training" in card
    assert "## Results" not in card
    assert f"JAX {jax.__version__} wrote these programs" in card
