"""Systems against measures, as text."""

import textwrap

from endx_jax.metrics import TIE_RULE


def format_table(rows: dict[str, dict[str, float]], keys) -> str:
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
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = "\n".join(
        "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))]).rstrip()
        for line in lines
    )
    notes = textwrap.fill(f"* best of its column. {TIE_RULE}", width=100)
    return f"{text}\n{notes}"
