"""Text tables of metrics by system."""

import textwrap
from collections.abc import Mapping, Sequence

from endx_jax.metrics import TIE_RULE


def format_table(rows: Mapping[str, Mapping[str, float]], keys: Sequence[str]) -> str:
    """Formats a table with one line per system and one column per metric, with three decimals.

    The best values of a column are marked with `*` unless all are equal; missing values are shown as `-`. The last
    lines state the tie rule.

    Args:
      rows: metrics of each system, as in `results.json` or `Evaluation.metrics`.
      keys: metrics to show, in order; higher is better in all of them.
    """
    values = {key: {row[key] for row in rows.values() if key in row} for key in keys}
    best = {key: max(column) if len(column) > 1 else None for key, column in values.items()}

    def cell(row, key):
        if key not in row:
            return "- "
        return f"{row[key]:.3f}" + ("*" if row[key] == best[key] else " ")

    lines = [["system", *(f"{key} " for key in keys)]]
    lines += [[name, *(cell(row, key) for key in keys)] for name, row in rows.items()]
    notes = textwrap.fill(f"* best of its column. {TIE_RULE}", width=100)
    return "\n".join([*aligned(lines), notes])


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Formats rows as lines: the first column left-aligned, the others right-aligned, two spaces between."""
    first, *others = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join([row[0].ljust(first), *map(str.rjust, row[1:], others)]).rstrip() for row in rows]
