import json

import pytest
from helpers import one_line_error

from reproduction.figures.precision_recall import data, is_layers, read_curve
from reproduction.figures.study import Source, Study

COUNTS = {"questions": 3, "candidates": 2, "right": 4}


def write(folder, counts=COUNTS):
    folder.mkdir(exist_ok=True)
    systems = [
        {"system": name, "metrics": {"test": {"ap": ap}}} for name, ap in (("tokens", 0.5), ("tokens + idf", 0.6))
    ]
    (folder / "layers.json").write_text(json.dumps({"systems": systems, "sets": {"test": counts}}))
    rows = ["system,recall,precision", "tokens,0.5,1", "tokens + idf,0.4,0.9", "tokens + idf,1,0.25"]
    (folder / "precision_recall.csv").write_text("\n".join(rows) + "\n")
    return folder


def test_a_system_of_layers_is_read(tmp_path):
    source = Source("IDF", f"{write(tmp_path / 'layers')}#tokens + idf")
    assert is_layers(source)
    assert not is_layers(Source("run", "runs/a"))
    model, counts = read_curve(source)
    assert model == {"name": "IDF", "average_precision": 0.6, "recall": [0.4, 1.0], "precision": [0.9, 0.25]}
    assert counts == COUNTS


@pytest.mark.parametrize(
    ("place", "says"),
    [("layers#token", "is 'token', which is none of .*; did you mean 'tokens'"), ("none#tokens", "is no folder")],
)
def test_missing_systems_and_folders_are_named(tmp_path, place, says):
    write(tmp_path / "layers")
    with one_line_error(says):
        read_curve(Source("mine", str(tmp_path / place)))


def test_curves_of_different_sets_are_refused(tmp_path):
    one, other = write(tmp_path / "one"), write(tmp_path / "other", COUNTS | {"candidates": 9})
    found = data(Study([Source("a", f"{one}#tokens"), Source("b", f"{one}#tokens + idf")]))
    assert [model["name"] for model in found["models"]] == ["a", "b"]
    with one_line_error("b was measured on 3 questions and 9 candidates, a on 3 questions and 2 candidates"):
        data(Study([Source("a", f"{one}#tokens"), Source("b", f"{other}#tokens")]))
