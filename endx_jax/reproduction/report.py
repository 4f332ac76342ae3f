"""What `endx reproduce` prints: expected, got and difference of each row, and why a row has no number."""

from collections.abc import Sequence

from endx_jax.reproduction.outcome import Outcome, t_tests
from endx_jax.reproduction.table import Table


def text(table: Table, outcomes: Sequence[Outcome], budget: float) -> str:
    """A table for the screen, and what has to be known to read it."""
    lines = [f"{table.name}: {table.title}. {table.paper}.{shortened(budget)}", ""]
    header = ["row", "seeds", *(f"{measure} {part}" for measure in table.measures for part in ("paper", "got", "diff"))]
    shown = [header, *(cells(outcome, table) for outcome in outcomes)]
    widths = [max(len(row[column]) for row in shown) for column in range(len(header))]
    for row in shown:
        rest = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        lines.append("  ".join([row[0].ljust(widths[0]), *rest]).rstrip())
    return "\n".join([*lines, "", *notes(table, outcomes)])


def shortened(budget: float) -> str:
    """What a heading says of a budget."""
    return f" SHORTENED to {budget:g} minutes: not the paper's runs." if budget else ""


def notes(table: Table, outcomes: Sequence[Outcome]) -> list[str]:
    """Reasons, t-tests, verdicts, and how shortened runs differ: a line each."""
    lines = []
    judged = [outcome for outcome in outcomes if outcome.holds(table) is not None]
    if judged:
        held = sum(outcome.holds(table) is True for outcome in judged)
        lines.append(f"within {table.tolerance:g} of the paper in every column: {held} of {len(judged)} rows")
    for name, values in t_tests(list(outcomes)).items():
        against = next(outcome.row.against for outcome in outcomes if outcome.row.row == name)
        shown = ", ".join(f"{m} p = {p:.3g}" for m, p in zip(table.measures, values, strict=True))
        lines.append(f"{name} against {against}, Welch's t-test over seeds: {shown}")
    for outcome in outcomes:
        if outcome.row.quoted and not outcome.values:
            lines.append(f"{outcome.row.row}: quoted, not run: {outcome.row.quoted}")
        elif outcome.why:
            state = f"{len(outcome.values)} seeds only" if outcome.values else "skipped"
            lines.append(f"{outcome.row.row}: {state}: {outcome.why}")
        if outcome.row.note:
            lines.append(f"{outcome.row.row}: {outcome.row.note}")
    for difference in dict.fromkeys(outcome.differs for outcome in outcomes if outcome.differs and outcome.values):
        rows = ", ".join(outcome.row.row for outcome in outcomes if outcome.differs == difference and outcome.values)
        lines.append(f"shortened ({rows}): {difference}")
    if table.note:
        lines.append(table.note)
    return lines


def cells(outcome: Outcome, table: Table) -> list[str]:
    """A row: its name, its seeds, and paper, got and difference of each measure in turn."""
    found = [
        outcome.row.row,
        str(len(outcome.values)) if outcome.values else "quoted" if outcome.row.quoted else "-",
    ]
    for n in range(len(table.measures)):
        spread = f" ±{outcome.deviations[n]:.2f}" if outcome.deviations else ""
        found += [
            _number(outcome.row.expected[n], table) if outcome.row.expected else "",
            f"{_number(outcome.means[n], table)}{spread}" if outcome.values else "",
            f"{outcome.differences[n]:+,.{_digits(table)}f}" if outcome.differences else "",
        ]
    return found


def _number(value: float, table: Table) -> str:
    """A number in the table's unit."""
    return f"{value:,.{_digits(table)}f}"


def _digits(table: Table) -> int:
    return 0 if table.unit == "count" else 2
