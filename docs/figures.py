"""Draws the figures of the pages from the numbers in the pages' tables; needs the extra `plot`.

python docs/figures.py
"""

import pathlib
import re
from collections.abc import Callable, Iterator

import matplotlib
from matplotlib.figure import Figure
from page_tables import tables

FOLDER = pathlib.Path(__file__).parent
BLUE, RED, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#6B6B6B"
STYLE = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "endx_jax"}


def table(page: str, *columns: str) -> Iterator[dict[str, str]]:
    """Yields the rows of the first table of a page whose first columns have these names."""
    found = (table for *_, table in tables((FOLDER / page).read_text()) if table[0][: len(columns)] == list(columns))
    names, rows = next(found)
    return (dict(zip(names, row, strict=True)) for row in rows)


def numbers(cell: str) -> list[float]:
    """Returns the numbers in a cell."""
    return [float(number) for number in re.findall(r"[-+]?\d+(?:\.\d+)?", cell.replace(",", ""))]


def arms() -> Figure:
    """Draws the difference of every arm from its dual encoder, with its interval if it has one."""
    rows = [row for row in table("endx-study.md", "arm", "seeds") if row["difference"]]
    dev = {row["arm"]: row["difference"] for row in table("endx-study.md", "arm", "MRR", "R@1")}
    rows.sort(key=lambda row: -numbers(row["difference"])[0])
    figure, axes = _figure(6.2)
    for place, row in enumerate(rows):
        value, interval = numbers(row["difference"])[0], numbers(row["interval"])
        colour = GREY if row["arm"].startswith("Dual") else GREEN if value > 0 else RED
        axes.plot(interval, [place] * len(interval), color=colour, linewidth=2)
        axes.plot(value, place, "o", color=colour, markersize=5, label="held-out articles" if place == 0 else None)
        if dev.get(row["arm"]):
            label = "dev file" if "dev file" not in axes.get_legend_handles_labels()[1] else None
            value = numbers(dev[row["arm"]])[0]
            axes.plot(value, place, "D", color=colour, fillstyle="none", markersize=8, label=label)
    axes.axvline(0, color=GREY, linewidth=1, linestyle="--")
    axes.set_yticks(range(len(rows)), [f"{row['arm']} ({row['seeds']})" for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel(
        "MRR minus the dual encoder's, percentage points\n"
        "(in brackets: seeds; lines: 95 % intervals)\n"
        "grey: dual encoders; green: above theirs; red: below it"
    )
    axes.legend(frameon=False, loc="upper left")
    return figure


def minutes() -> Figure:
    """Draws MRR and its deviation over the time of a run, with the teacher's embedding before it."""
    measured = {row["arm"]: numbers(row["MRR"]) for row in table("endx-study.md", "arm", "seeds")}
    times = {row["arm"]: row for row in table("endx-study.md", "arm", "pairs/s in training")}
    figure, axes = _figure(3.2)
    for (arm, row), colour in zip(times.items(), (BLUE, RED, GREEN), strict=True):
        run, before = (numbers(row[name])[0] / 60 for name in ("run, s", "embedding before, s"))
        mean, deviation = measured[arm]
        if before:
            axes.plot([run, run + before], [mean] * 2, color=colour, linewidth=1, linestyle=":")
            axes.plot(run, mean, "o", color=colour, fillstyle="none")
            label = "with MiniLM's embeddings in the cache"
            axes.annotate(label, (run, mean), (0, -20), textcoords="offset points", color=colour)
        axes.errorbar(run + before, mean, deviation, marker="o", color=colour, capsize=3)
        name = arm.removesuffix(", no diagonal")
        axes.annotate(name, (run + before, mean), (8, -4), textcoords="offset points", color=colour)
    dual = times["Dual"]
    longer = (numbers(dual["run, s"])[0] + 12_800 / numbers(dual["pairs/s in training"])[0]) / 60
    twice = "Dual, twice the steps"
    axes.errorbar(longer, *measured[twice], marker="o", color=BLUE, capsize=3)
    axes.annotate(twice, (longer, measured[twice][0]), (8, 3), textcoords="offset points", color=BLUE)
    axes.set(xlim=(0, 2.2), ylim=(52.5, 61.5), ylabel="MRR on held-out articles (%)")
    axes.set_xlabel("minutes of a run, on two CPU cores (bars: standard deviation of 5 seeds)")
    return figure


def prefixes() -> Figure:
    """Draws MRR over the width of the prefix: means over seeds and every seed."""
    widths = ["48", "96", "192", "384"]
    bm25, *rows = table("results.md", "system", "384", "192")
    figure, axes = _figure(3.4)
    axes.axhline(numbers(bm25["384"])[0], color="black", linewidth=1, linestyle=":", label="BM25")
    for row, colour, marker in zip(rows, (GREY, RED, BLUE, GREEN), "osD^", strict=True):
        runs = [numbers(row[width]) for width in widths]
        means = [sum(values) / len(values) for values in runs]
        axes.plot(widths, means, color=colour, marker=marker, markersize=5, label=row["system"].strip("`"))
        for width, values in zip(widths, runs, strict=True):
            axes.plot([width] * len(values), values, marker, color=colour, markersize=3, alpha=0.5)
    axes.set(
        xlabel="width of the prefix, components (lines: means; small marks: seeds)",
        ylabel="MRR (%), 2,000 dev questions",
    )
    axes.legend(frameon=False, loc="lower right")
    return figure


def ratios() -> Figure:
    """Draws the rates of each kind of work over those of its peer, on two machines."""
    rows = list(table("performance.md", "work", "peer"))
    names = [f"{row['work']} ({row['peer']})" for row in rows]
    figure, axes = _figure(4.0)
    for machine, colour, marker in (("Intel Xeon", BLUE, "o"), ("AMD EPYC", RED, "D")):
        marks = [(value, place) for place, row in enumerate(rows) for value in numbers(row[machine])]
        axes.plot(*zip(*marks, strict=True), marker, color=colour, markersize=6, label=machine)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_yticks(range(len(rows)), names)
    axes.invert_yaxis()
    axes.set(xlim=(0, 4), xlabel="rate of endx_jax over the peer's\n(line: equal rates; left of it the peer is faster)")
    axes.legend(frameon=False, loc="lower right")
    return figure


def _figure(height: float) -> tuple:
    figure = Figure(figsize=(7.2, height), layout="constrained")
    return figure, figure.subplots()


FIGURES: dict[str, Callable[[], Figure]] = {
    "endx-arms": arms,
    "endx-minutes": minutes,
    "performance-ratios": ratios,
    "results-prefixes": prefixes,
}

if __name__ == "__main__":
    # Black on white in files without a date: legible on light and dark pages, and equal bytes from equal numbers.
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **STYLE}):
        for name, draw in FIGURES.items():
            draw().savefig(FOLDER / "images" / f"{name}.svg", metadata={"Date": None, "Creator": None})
