"""Every figure, from tiny data to its files."""

import json

import pytest
from helpers import one_line_error
from tiny_study import TinyStudy

from endx_jax.papers.figures import FIGURES, make
from endx_jax.papers.figures.figure import save

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


@pytest.mark.parametrize("name", NAMES)
def test_two_models_of_one_name_are_refused(name):
    with one_line_error("two runs are called near"):
        FIGURES[name].data(TinyStudy("near", "near"))
