"""`endx reproduce`: the rows of a table one after another, and the figures."""

import time
from collections.abc import Callable, Sequence

from endx_jax.experiment.console import say
from endx_jax.reproduction import baselines, collection, counted, few, layered
from endx_jax.reproduction.outcome import Outcome
from endx_jax.reproduction.plan import Options
from endx_jax.reproduction.table import Row, Table
from endx_jax.reproduction.trained import Budget, trained

# What is done for a row, by its kind.
KINDS: dict[str, Callable[[Row, Options, Budget], Outcome]] = {
    "train": trained,
    "few": few.measure,
    "collection": collection.measure,
    "bm25": lambda row, options, budget: baselines.bm25(row, options),
    "pretrained": lambda row, options, budget: baselines.pretrained(row, options),
    "counts": lambda row, options, budget: counted.count(row, options),
    "layers": lambda row, options, budget: layered.measure(row, options),
}


def reproduce(table: Table, rows: Sequence[Row], options: Options) -> list[Outcome]:
    """Makes what is not there yet, a row after another, and returns what came of each."""
    started = time.monotonic()
    budget = Budget(lambda: 60 * options.budget - (time.monotonic() - started)) if options.budget else Budget()
    outcomes = []
    for row in rows:
        outcomes.append(_outcome(row, options, budget))
        if outcomes[-1].why:
            say(f"{row.name}: {outcomes[-1].why}")
    return outcomes


def _outcome(row: Row, options: Options, budget: Budget) -> Outcome:
    if row.quoted and not (options.budget and row.short):
        return Outcome(row)
    return KINDS[row.kind](row, options, budget)
