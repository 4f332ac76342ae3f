"""The papers' figures: drawn by `endx analyse` from the runs of their rows."""

import pathlib

from endx_jax.analysis import FIGURES, Source, Study, make
from endx_jax.errors import EndxError
from endx_jax.experiment.console import say
from endx_jax.reproduction.plan import Options
from endx_jax.reproduction.run import KINDS
from endx_jax.reproduction.table import PaperFigure, papers
from endx_jax.reproduction.trained import Budget


def draw(figure: PaperFigure, options: Options) -> pathlib.Path:
    """Draws a figure from the first seed of each of its rows; rows whose runs can't be had are left out, and said.

    Returns:
      The PNG.

    Raises:
      EndxError: there is none of its runs.
    """
    sources = []
    for name in figure.runs:
        row = papers().row(name)
        outcome = KINDS[row.kind](row, options, Budget())
        if outcome.runs:
            sources.append(Source(row.row.rpartition("/")[2], outcome.runs[0]))
        else:
            say(f"{figure.name}: left out {name}: {outcome.why or row.quoted}")
    if not sources:
        raise EndxError(f"{figure.name}: there is none of its runs")
    kind = FIGURES[figure.figure]
    target = options.output / "figures" / f"{figure.name}-{options.length}"
    make(figure.figure, kind, Study(sources, options.output / "encodings"), kind.options(), target)
    return target.with_name(f"{target.name}.png")
