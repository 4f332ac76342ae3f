"""Every figure, from tiny data to its files."""

import json

import pytest
from helpers import one_line_error
from tiny_study import TinyStudy

from endx_jax.papers.figures import FIGURES, make, redraw

pytest.importorskip("matplotlib", reason="matplotlib is not installed")
pytest.importorskip("sklearn", reason="scikit-learn is not installed")

SMALL = {
    "overlap": {"pairs": 10},
    "similarity": {"answers": 3, "questions": 3},
    "one-answer": {"questions": 4, "around": 8},
    "shared-answer": {"examples": 2},
    "minimum-questions": {"most": 3},
    "precision-recall": {"points": 5},
}


@pytest.mark.parametrize("name", SMALL)
def test_a_figure_and_its_numbers_are_written_and_can_be_drawn_again(name, tmp_path):
    figure = FIGURES[name]
    data = make(name, figure, TinyStudy("near", "far"), figure.options(**SMALL[name]), tmp_path / "drawn")
    written = json.loads((tmp_path / "drawn.json").read_text())
    assert written["figure"] == name
    assert written["sources"] == [["near", "near"], ["far", "far"]]
    assert written["data"] == data
    assert (tmp_path / "drawn.png").read_bytes().startswith(b"\x89PNG")
    assert redraw(FIGURES, tmp_path / "drawn.json", tmp_path / "again") == name
    for ending in ("png", "svg"):
        assert (tmp_path / f"again.{ending}").read_bytes() == (tmp_path / f"drawn.{ending}").read_bytes()


def test_other_files_are_not_redrawn(tmp_path):
    with one_line_error("missing.json can't be read: No such file"):
        redraw(FIGURES, tmp_path / "missing.json", tmp_path / "drawn")
    (tmp_path / "other.json").write_text('{"figure": "pie", "data": {}}')
    with one_line_error("holds the numbers of no figure"):
        redraw(FIGURES, tmp_path / "other.json", tmp_path / "drawn")


@pytest.mark.parametrize("name", ["overlap", "similarity", "one-answer", "minimum-questions", "precision-recall"])
def test_two_models_of_one_name_are_refused(name):
    with one_line_error("two runs are called near"):
        FIGURES[name].data(TinyStudy("near", "near"), FIGURES[name].options())


@pytest.mark.parametrize("name", ["one-answer", "shared-answer"])
def test_an_unknown_answer_is_named(name):
    with one_line_error("--answer=d99 is no id of the pool; ids are such as d0"):
        FIGURES[name].data(TinyStudy("near", "far"), FIGURES[name].options(answer="d99"))
