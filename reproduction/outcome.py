"""Outcome of a row, its values or the reason why it has none, and tests between rows."""

import dataclasses
import statistics
from collections.abc import Sequence

from reproduction.significance import paired_t_test, t_test
from reproduction.tables import Row, Table

FEWEST_SEEDS = 3  # of a row for a p-value or an interval


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Row with its computed values, or the reason why it has none.

    Attributes:
      row: row of the paper.
      values: for each seed the measures in the row's order, in the table's unit; empty if nothing was computed.
      why: reason why values are missing.
      differs: description of the differences from the paper's row; empty if there are none.
      runs: folders from which the values were read, for figures.
      facts: settings, versions and hardware of those runs, for the page.
    """

    row: Row
    values: tuple[tuple[float, ...], ...] = ()
    why: str = ""
    differs: str = ""
    runs: tuple[str, ...] = ()
    facts: dict = dataclasses.field(default_factory=dict)

    @property
    def label(self) -> str:
        """Name of the row, and of a shortened one what was run in its place."""
        ran = self.row.short.get("name", self.row.short.get("model", "")) if self.differs else ""
        return f"{self.row.row}: {ran}" if ran else self.row.row

    @property
    def means(self) -> tuple[float, ...]:
        """Returns the mean over seeds of each measure."""
        return tuple(map(statistics.fmean, zip(*self.values, strict=True)))

    @property
    def deviations(self) -> tuple[float, ...]:
        """Sample standard deviation over seeds of each measure; empty for fewer than two seeds."""
        return tuple(map(statistics.stdev, zip(*self.values, strict=True))) if len(self.values) > 1 else ()

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of the runs; empty if they are not known."""
        return tuple(run["seed"] for run in self.facts.get("runs", ()))

    @property
    def differences(self) -> tuple[float, ...]:
        """Computed minus expected values; empty where either is missing."""
        if not self.values or not self.row.expected:
            return ()
        return tuple(got - expected for got, expected in zip(self.means, self.row.expected, strict=True))

    def holds(self, table: Table) -> bool | None:
        """Returns true if every measure is within the table's tolerance; None for shortened rows."""
        if not self.differences or self.differs:
            return None
        return all(abs(difference) <= table.tolerance for difference in self.differences)


def compared(outcomes: Sequence[Outcome]) -> list[tuple[Outcome, Outcome]]:
    """Returns each row that names a row to compare with, and that one, if both have at least three seeds."""
    found = {outcome.row.row: outcome for outcome in outcomes if len(outcome.values) >= FEWEST_SEEDS}
    return [(one, found[one.row.against]) for one in found.values() if one.row.against in found]


def t_tests(outcomes: Sequence[Outcome]) -> list[str]:
    """Tests the rows of `compared` over their seeds, in pairs where both have the same seeds and so the same batches.

    Returns:
      A line for each row: gain and two-sided p-value of each measure; of several tests also adjusted by Holm's method.
    """
    pairs = compared(outcomes)
    columns = [[list(zip(*each.values, strict=True)) for each in pair] for pair in pairs]
    paired = [bool(one.seeds) and one.seeds == other.seeds for one, other in pairs]
    p = [
        [(paired_t_test if same else t_test)(*both) for both in zip(other, one, strict=True)]
        for (one, other), same in zip(columns, paired, strict=True)
    ]
    adjusted = zip(*map(holm, zip(*p, strict=True)), strict=True)
    lines = []
    for (one, other), same, *found in zip(pairs, paired, p, adjusted, strict=True):
        shown = [
            f"{measure} {mine - theirs:+.2f}, p = {p:.3g}" + (f" (Holm {corrected:.3g})" if len(pairs) > 1 else "")
            for measure, mine, theirs, p, corrected in zip(
                one.row.measures, one.means, other.means, *found, strict=True
            )
        ]
        name = "paired" if same else "Welch's"
        lines.append(f"{one.row.row} against {other.row.row}, {name} t-test over seeds: {', '.join(shown)}")
    return lines


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns the p-values adjusted for their number (Holm 1979), in the order given.

    The i-th smallest of n, counted from 0, is multiplied by n - i; none is smaller than that of a smaller p-value, nor
    larger than 1. Tests with an adjusted value below a level have at least one false finding with at most that
    probability.
    """
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted
