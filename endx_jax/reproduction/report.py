"""What `endx reproduce` prints: expected, got and difference of each row, and why a row has no number."""

import pathlib
from collections.abc import Sequence

from endx_jax.reproduction.outcome import Outcome, t_tests
from endx_jax.reproduction.table import Table
from endx_jax.retrieval.tables import aligned, widths


def text(table: Table, outcomes: Sequence[Outcome], budget: float) -> str:
    """A table for the screen, and what has to be known to read it."""
    lines = [f"{table.name}: {table.title}. {table.paper}.{shortened(budget)}", ""]
    shown = [["row", "seeds", *(part for _ in table.measures for part in ("paper", "got", "diff"))]]
    shown += [cells(outcome, table) for outcome in outcomes]
    first, second, *columns = widths(shown)
    # A measure's name stands over its three columns.
    group = [sum(columns[n : n + 3]) + 4 for n in range(0, len(columns), 3)]
    over = [measure.center(width) for measure, width in zip(table.measures, group, strict=True)]
    lines.append("  ".join([" " * first, " " * second, *over]).rstrip())
    return "\n".join([*lines, *aligned(shown), "", *notes(table, outcomes)])


def shortened(budget: float) -> str:
    """What a heading says of a budget."""
    return f" SHORTENED to {budget:g} minutes: not the paper's runs." if budget else ""


def notes(table: Table, outcomes: Sequence[Outcome]) -> list[str]:
    """Reasons, t-tests, verdicts, and how shortened runs differ: a line each."""
    lines = []
    judged = [outcome for outcome in outcomes if outcome.holds(table) is not None]
    if judged:
        held = sum(outcome.holds(table) is True for outcome in judged)
        bar = f"within {table.tolerance:g} of the paper" if table.tolerance else "as in the paper"
        lines.append(f"{bar} in every column: {held} of {len(judged)} rows")
    for name, values in t_tests(list(outcomes)).items():
        against = next(outcome.row.against for outcome in outcomes if outcome.row.row == name)
        shown = ", ".join(f"{m} p = {p:.3g}" for m, p in zip(table.measures, values, strict=True))
        lines.append(f"{name} against {against}, Welch's t-test over seeds: {shown}")
    said: dict[str, list[str]] = {}
    for outcome in outcomes:
        for reason in _reasons(outcome):
            said.setdefault(reason, []).append(outcome.row.row)
    lines += [f"{', '.join(rows)}: {reason}" for reason, rows in said.items()]
    if table.note:
        lines.append(table.note)
    return lines


def _reasons(outcome: Outcome) -> list[str]:
    """Why a row has no number, or not all, and what it differs in; the same of several rows is said once."""
    reasons = []
    if outcome.row.quoted and not outcome.values:
        reasons.append(f"quoted, not run: {outcome.row.quoted}")
    elif outcome.why:
        state = f"{len(outcome.values)} seeds only" if outcome.values else "skipped"
        # A page is for others, whose home is elsewhere.
        reasons.append(f"{state}: {outcome.why.replace(str(pathlib.Path.home()), '~')}")
    if outcome.row.note:
        reasons.append(outcome.row.note)
    if outcome.differs and outcome.values:
        reasons.append(f"shortened: {outcome.differs}")
    return reasons


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
