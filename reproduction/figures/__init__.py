"""Figures of the papers, by their names in `papers.toml`: numbers of finished runs, and drawings of these."""

import json
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import endx_jax
from endx_jax.errors import EndxError
from endx_jax.files import write_text
from endx_jax.parallel.console import say
from reproduction.figures import dong, endx, rr, yu
from reproduction.figures.drawing import save
from reproduction.figures.study import FigureSource, Study
from reproduction.rows import outcome_of
from reproduction.runs import Options
from reproduction.tables import PaperFigure, papers


class Kind(NamedTuple):
    """A figure's numbers as JSON values, its drawing of them, and whether it shows all seeds of a row."""

    data: Callable[[Study], dict]
    draw: Callable[[dict], Any]
    seeds: bool = False


FIGURES = {
    "endx-study-curves": Kind(endx.curves, endx.draw_curves, seeds=True),
    "endx-figure2": Kind(endx.minimum_questions, endx.draw_minimum_questions),
    "endx-figure3": Kind(endx.similarity, endx.draw_similarity),
    "endx-figure4": Kind(endx.one_answer, endx.draw_one_answer),
    "dong-figure2": Kind(dong.overlap, dong.draw_overlap),
    "dong-figure3": Kind(dong.gains, dong.draw_gains),
    "dong-figure4": Kind(dong.sizes, dong.draw_sizes),
    "rr-figure4": Kind(rr.precision_recall, rr.draw_precision_recall),
    "yu-figure2": Kind(yu.shared_answer, yu.draw_shared_answer),
}


def sources_of(figure: PaperFigure, options: Options) -> list[FigureSource]:
    """Returns the runs of a figure's rows, the first seed of each unless it shows seeds; says which rows have none.

    Raises:
      EndxError: no row has a run.
    """
    sources = []
    for name in figure.runs:
        outcome = outcome_of(papers().row(name), options)
        if not outcome.runs:
            say(f"{figure.name}: left out {name}: {outcome.why or outcome.row.quoted}")
        runs = outcome.runs if FIGURES[figure.name].seeds else outcome.runs[:1]
        sources += [FigureSource(outcome.label.rpartition("/")[2], run) for run in runs]
    if not sources:
        raise EndxError(f"{figure.name}: none of its rows has a run")
    return sources


def make(name: str, study: Study, target: pathlib.Path) -> dict:
    """Computes a figure's numbers, writes them as `target.json`, and draws them as `target.png` and `target.svg`.

    Raises:
      EndxError: a package is missing, or the runs or texts do not suit the figure.
    """
    contents = {
        "figure": name,
        "endx_jax": endx_jax.__version__,
        "sources": study.sources,
        "data": FIGURES[name].data(study),
    }
    text = json.dumps(contents, ensure_ascii=False) + "\n"
    write_text(target.with_name(f"{target.name}.json"), text)
    data = json.loads(text)["data"]
    save(FIGURES[name].draw, data, target)
    return data
