"""Outcome of a row: its values, or the reason why it has none."""

import dataclasses
import statistics
from collections.abc import Sequence

from endx_jax.metrics.significance import holm, paired_t_test, t_test
from reproduction.tables import Row, Table


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Row with its computed values, or the reason why it has none.

    Attributes:
      row: row of the paper.
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


@dataclasses.dataclass(frozen=True)
class Test:
    """T-test over seeds of a row against another.

    Attributes:
      row: name of the row.
      against: name of the other row.
      paired: true if both rows have the same seeds, which then have the same batches.
      gains: mean difference of each measure, in the table's unit.
      p: two-sided p-value of each measure: of the paired t-test, or of Welch's.
      adjusted: the p-values, by Holm's method for the number of tests of the table on the same measure.
    """

    row: str
    against: str
    paired: bool
    gains: tuple[float, ...]
    p: tuple[float, ...]
    adjusted: tuple[float, ...]


def t_tests(outcomes: Sequence[Outcome]) -> list[Test]:
    """Tests every row that names a row to compare with; rows with fewer than two seeds on either side are left out."""
    found = {outcome.row.row: outcome for outcome in outcomes}
    tests = []
    for outcome in outcomes:
        other = found.get(outcome.row.against)
        if other is None or min(len(outcome.values), len(other.values)) < 2:
            continue
        paired = bool(outcome.seeds) and outcome.seeds == other.seeds
        test = paired_t_test if paired else t_test
        columns = zip(zip(*other.values, strict=True), zip(*outcome.values, strict=True), strict=True)
        p = tuple(test(*pair) for pair in columns)
        gains = tuple(mine - theirs for mine, theirs in zip(outcome.means, other.means, strict=True))
        tests.append(Test(outcome.row.row, outcome.row.against, paired, gains, p, p))
    adjusted = zip(*(holm(column) for column in zip(*(test.p for test in tests), strict=True)), strict=True)
    return [dataclasses.replace(test, adjusted=values) for test, values in zip(tests, adjusted, strict=True)]
