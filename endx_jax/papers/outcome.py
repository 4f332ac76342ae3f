"""Outcome of a row: its values, or the reason why it has none."""

import dataclasses
import statistics

from endx_jax.metrics.significance import t_test
from endx_jax.papers.tables import Row, Table


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Row with its computed values, or the reason why it has none.

    Attributes:
      row: of the paper.
      values: for each seed the measures in the row's order, in the table's unit; empty if nothing was computed.
      why: reason why values are missing.
      differs: description of the differences from the paper's row; empty if there are none.
      runs: folders from which the values were read, for `endx papers figures`.
      facts: settings, versions and hardware of those runs, for the page.
    """

    row: Row
    values: tuple[tuple[float, ...], ...] = ()
    why: str = ""
    differs: str = ""
    runs: tuple[str, ...] = ()
    facts: dict = dataclasses.field(default_factory=dict)

    @property
    def means(self) -> tuple[float, ...]:
        """Returns the mean over seeds of each measure."""
        return tuple(map(statistics.fmean, zip(*self.values, strict=True)))

    @property
    def deviations(self) -> tuple[float, ...]:
        """Sample standard deviation over seeds of each measure; empty for fewer than two seeds."""
        return tuple(map(statistics.stdev, zip(*self.values, strict=True))) if len(self.values) > 1 else ()

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


def t_tests(outcomes: list[Outcome]) -> dict[str, tuple[float, ...]]:
    """Returns, for each row that names a row to compare with, Welch's p-value over seeds of each measure.

    Rows with fewer than two seeds on either side are left out.
    """
    found = {outcome.row.row: outcome for outcome in outcomes}
    return {
        name: tuple(t_test(*pair) for pair in _columns(outcome, found[outcome.row.against]))
        for name, outcome in found.items()
        if outcome.row.against in found and min(len(outcome.values), len(found[outcome.row.against].values)) > 1
    }


def _columns(first: Outcome, second: Outcome) -> list[tuple[list[float], list[float]]]:
    """Returns both rows' values over seeds, for each measure."""
    return [
        (list(a), list(b))
        for a, b in zip(zip(*first.values, strict=True), zip(*second.values, strict=True), strict=True)
    ]
