"""`results.html` of a run: its tables, its learning curve, and questions that gained and lost most by training.

One file without scripts and without links to elsewhere, so that it opens offline.
"""

import html
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from endx_jax.methods.evaluation import UNTRAINED, UNTRAINED_HYBRID
from endx_jax.ranking.results import Results
from endx_jax.training.metric_log import FILE, read_metrics

# Questions of each list, and characters of a text that are shown.
LISTED, SHOWN = 10, 300
# Size of a picture, and space around its plot for the axes.
WIDTH, HEIGHT, LEFT, BELOW = 640, 220, 56, 28
STYLE = (
    "body{font:15px/1.45 sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222;background:#fff}"
    "pre{overflow-x:auto;background:#f6f6f6;padding:1em}td,th{text-align:left;vertical-align:top;"
    "padding:.4em .8em .4em 0;border-bottom:1px solid #ddd}text{font:12px sans-serif;fill:#444}"
)
Points = Sequence[tuple[float, float]]


def results_page(results: Results, workdir: pathlib.Path, measure: str) -> str:
    """Returns the page as HTML.

    Args:
      results: results of the run.
      workdir: its folder, with `metrics.jsonl`.
      measure: the measure whose validation values are drawn, or `SET/MEASURE`.
    """
    lines = read_metrics(workdir / FILE)
    curves = {"loss of the training batches": "loss", f"validation, {measure}": f"validation/{measure}"}
    parts = [f"<h1>{html.escape(workdir.name)}</h1><pre>{html.escape(results.tables())}</pre>"]
    for title, name in curves.items():
        points = [(line["step"], line[name]) for line in lines if name in line and np.isfinite(line[name])]
        if points:
            parts.append(f"<h2>{html.escape(title[0].upper() + title[1:])}</h2>{curve(points)}")
    systems = results.evaluations.get(results.pools.primary_name, {})
    for before, after in ((UNTRAINED_HYBRID, "hybrid"), (UNTRAINED, "trained")):
        if before in systems and after in systems:
            parts += _changes(results, before, after)
            break
    head = f'<meta charset="utf-8"><title>{html.escape(workdir.name)}</title><style>{STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>\n'


def curve(points: Points) -> str:
    """Returns a line through (step, value) points as SVG, with the ends of both axes; one point is a dot."""
    steps, values = np.array(points, np.float64).T
    low, high = float(values.min()), float(values.max())
    across = LEFT + (WIDTH - LEFT - 10) * (steps - steps.min()) / max(1.0, float(np.ptp(steps)))
    up = HEIGHT - BELOW - (HEIGHT - BELOW - 14) * (values - low) / ((high - low) or 1.0)
    places = [f"{x:.1f},{y:.1f}" for x, y in zip(across, up, strict=True)]
    base = HEIGHT - BELOW
    at = zip(across, up, strict=True)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="#0a58ca"/>' for x, y in at)
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img" aria-label="{low:.4g} to {high:.4g}">'
        f'<path d="M{LEFT} 8V{base}H{WIDTH}" fill="none" stroke="#999"/>'
        f'<polyline points="{" ".join(places)}" fill="none" stroke="#0a58ca" stroke-width="1.5"/>{dots}'
        f'<text x="2" y="18">{high:.4g}</text><text x="2" y="{base}">{low:.4g}</text>'
        f'<text x="{LEFT}" y="{HEIGHT - 8}">step {steps.min():.0f}</text>'
        f'<text x="{WIDTH}" y="{HEIGHT - 8}" text-anchor="end">step {steps.max():.0f}</text></svg>'
    )


def _changes(results: Results, before: str, after: str) -> list[str]:
    """Returns the lists of questions whose best right answer rose and fell most, by reciprocal rank."""
    systems = results.evaluations[results.pools.primary_name]
    first, second = systems[before].ranks[:, 0], systems[after].ranks[:, 0]
    gains = 1 / second - 1 / first
    order = np.argsort(-gains, kind="stable")
    lists = {"gained": [row for row in order if gains[row] > 0], "lost": [row for row in order[::-1] if gains[row] < 0]}
    parts = []
    for word, rows in lists.items():
        parts.append(f"<h2>Questions that {word} most, {before} to {after}</h2>")
        cells = [_row(results, int(row), {"before": first, "after": second}, after) for row in rows[:LISTED]]
        head = "<tr><th>question</th><th>rank</th><th>right answer</th><th>best answer after training</th></tr>"
        parts.append(f"<table>{head}{''.join(cells)}</table>" if cells else "<p>none</p>")
    return parts


def _row(results: Results, row: int, ranks: Mapping[str, np.ndarray], after: str) -> str:
    records = results.pools.primary
    best = int(results.evaluations[results.pools.primary_name][after].top_ids[row, 0])
    right = "right" if best in records.qrels[row] else records.candidates[best]
    rank = f"{ranks['before'][row]:g} to {ranks['after'][row]:g}"
    texts = (records.questions[row], rank, records.candidates[records.qrels[row][0]], right)
    shown = (text if len(text) <= SHOWN else f"{text[:SHOWN]}..." for text in texts)
    return f"<tr>{''.join(f'<td>{html.escape(text)}</td>' for text in shown)}</tr>"
