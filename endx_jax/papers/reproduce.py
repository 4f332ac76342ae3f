"""Reproduces tables row by row, and figures from the runs of their rows."""

import pathlib
import time
from collections.abc import Sequence

from endx_jax.errors import EndxError
from endx_jax.papers.figures import FIGURES, Source, Study, make
from endx_jax.papers.outcome import Outcome
from endx_jax.papers.rows import KINDS
from endx_jax.papers.runs import Budget, Options
from endx_jax.papers.tables import PaperFigure, Row, papers
from endx_jax.parallel.console import say


def reproduce(rows: Sequence[Row], options: Options) -> list[Outcome]:
    """Computes rows in order, reusing finished runs, and returns an outcome for each."""
    started = time.monotonic()
    budget = Budget(lambda: 60 * options.budget - (time.monotonic() - started)) if options.budget else Budget()
    outcomes = []
    for row in rows:
        quoted = row.quoted and not (options.budget and row.short)
        outcomes.append(Outcome(row) if quoted else KINDS[row.kind](row, options, budget))
        if outcomes[-1].why:
            say(f"{row.name}: {outcomes[-1].why}")
    return outcomes


def draw(figure: PaperFigure, options: Options) -> pathlib.Path:
    """Draws a figure from the first seed of each of its rows; rows without a run are left out and named.

    Returns:
      The path of the PNG.

    Raises:
      EndxError: no row has a run.
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
        raise EndxError(f"{figure.name}: none of its rows has a run")
    target = options.output / "figures" / f"{figure.name}-{options.length}"
    make(figure.figure, FIGURES[figure.figure], Study(sources, options.output / "encodings"), target)
    return target.with_name(f"{target.name}.png")
