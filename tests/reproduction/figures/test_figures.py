"""Every figure, from tiny data to its files."""

import json

import numpy as np
import pytest
from helpers import one_line_error
from tiny_study import TinyStudy

from reproduction.figures import FIGURES, Source, Study, curves, make
from reproduction.figures.figure import save

pytest.importorskip("matplotlib", reason="matplotlib is not installed")
pytest.importorskip("sklearn", reason="scikit-learn is not installed")

NAMES = ["overlap", "similarity", "one-answer", "minimum-questions", "precision-recall"]


@pytest.mark.parametrize("name", [*NAMES, "shared-answer"])
def test_a_figure_and_its_numbers_are_written_and_equal_numbers_give_equal_files(name, tmp_path):
    figure = FIGURES[name]
    data = make(name, figure, TinyStudy("near", "far", questions=6), tmp_path / "drawn")
    written = json.loads((tmp_path / "drawn.json").read_text())
    assert written["figure"] == name
    assert written["sources"] == [["near", "near"], ["far", "far"]]
    assert written["data"] == data
    assert (tmp_path / "drawn.png").read_bytes().startswith(b"\x89PNG")
    save(figure, written["data"], tmp_path / "again")
    for ending in ("png", "svg"):
        assert (tmp_path / f"again.{ending}").read_bytes() == (tmp_path / f"drawn.{ending}").read_bytes()


def test_curves_are_those_of_the_seeds_of_a_name(tmp_path):
    """The mean and the range of two seeds, at the steps that both have."""
    for seed, at in (("a", {10: 0.1, 20: 0.3}), ("b", {10: 0.2, 20: 0.5, 30: 0.6})):
        (tmp_path / seed / "model").mkdir(parents=True)
        lines = [{"step": 5, "loss": 1.0}, *({"step": step, "validation/mrr": mrr} for step, mrr in at.items())]
        (tmp_path / seed / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (tmp_path / seed / "config.json").write_text("{}")
    study = Study([Source("dual", str(tmp_path / seed)) for seed in "ab"], tmp_path / "encodings")
    data = make("curves", FIGURES["curves"], study, tmp_path / "drawn")
    assert [tuple(np.round(point, 6)) for point in curves.summary(data["lines"]["dual"])] == [
        (10, 15.0, 10.0, 20.0),
        (20, 40.0, 30.0, 50.0),
    ]
    (tmp_path / "a" / "metrics.jsonl").write_text('{"step": 5, "loss": 1.0}\n')
    with one_line_error("dual: .* has no validation in metrics.jsonl: train with data.validation_fraction"):
        FIGURES["curves"].data(study)


@pytest.mark.parametrize("name", NAMES)
def test_two_models_of_one_name_are_refused(name):
    with one_line_error("two runs are called near"):
        FIGURES[name].data(TinyStudy("near", "near"))
