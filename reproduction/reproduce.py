"""Reproduces tables row by row, and figures from the runs of their rows."""

import dataclasses
import pathlib
import time
from collections.abc import Sequence

from endx_jax.errors import EndxError
from endx_jax.parallel.console import say
from reproduction.figures import FIGURES, Source, Study, make
from reproduction.outcome import Outcome
from reproduction.rows import KINDS, over_questions
from reproduction.runs import Budget, Options
from reproduction.tables import PaperFigure, Row, papers


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
    found = {outcome.row.row: outcome for outcome in outcomes}
    return [_with_intervals(outcome, found.get(outcome.row.against)) for outcome in outcomes]


def _with_intervals(outcome: Outcome, other: Outcome | None) -> Outcome:
    """Adds the intervals of `over_questions` to the facts of a row that names another, for the page."""
    if other is None or not (outcome.runs and other.runs):
        return outcome
    return dataclasses.replace(outcome, facts=outcome.facts | {"over_questions": over_questions(outcome, other)})


def draw(figure: PaperFigure, options: Options) -> pathlib.Path:
    """Draws a figure from the runs of its rows, the first seed of each unless it shows seeds; names rows without a run.

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
            runs = outcome.runs if FIGURES[figure.figure].seeds else outcome.runs[:1]
            sources += [Source(row.row.rpartition("/")[2], run) for run in runs]
        else:
            say(f"{figure.name}: left out {name}: {outcome.why or row.quoted}")
    if not sources:
        raise EndxError(f"{figure.name}: none of its rows has a run")
    target = options.output / "figures" / f"{figure.name}-{options.length}"
    make(figure.figure, FIGURES[figure.figure], Study(sources, options.output / "encodings"), target)
    return target.with_name(f"{target.name}.png")
