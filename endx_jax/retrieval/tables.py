"""Systems against measures, as text."""

import textwrap
from collections.abc import Mapping, Sequence

from endx_jax.metrics import TIE_RULE


def format_table(rows: Mapping[str, Mapping[str, float]], keys: Sequence[str]) -> str:
    """Lays out one line a system and one column a measure, fractions with three decimals.

    The best value of a column is marked with `*`, equals included; `-` stands where a system has no such value. The
    last lines state the rule for ties.

    Args:
      rows: for each system its measures, as in `results.json` or `Evaluation.metrics`.
      keys: the measures to show, in order; higher is better in all of them.
    """
    best = {key: max((row[key] for row in rows.values() if key in row), default=None) for key in keys}

    def cell(row, key):
        if key not in row:
            return "- "
        return f"{row[key]:.3f}" + ("*" if row[key] == best[key] else " ")

    lines = [["system", *(f"{key} " for key in keys)]]
    lines += [[name, *(cell(row, key) for key in keys)] for name, row in rows.items()]
    notes = textwrap.fill(f"* best of its column. {TIE_RULE}", width=100)
    return "\n".join([*aligned(lines), notes])


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of text, a row each: the first column flush left, the others flush right, two spaces between."""
    first, *others = widths(rows)
    return ["  ".join([row[0].ljust(first), *map(str.rjust, row[1:], others)]).rstrip() for row in rows]


def widths(rows: Sequence[Sequence[str]]) -> list[int]:
    """The width of each column, in characters."""
    return [max(map(len, column)) for column in zip(*rows, strict=True)]
