"""Relative gains over a baseline: Figure 3 of Dong et al. (2022)."""

import pathlib
import statistics

from endx_jax.errors import EndxError
from reproduction.figures import style
from reproduction.figures.figure import Figure
from reproduction.figures.study import PARTS, Study, metric_of, read_evaluations

METRIC, SYSTEM = "mrr", "trained"


def gains(values: dict[str, list[list[float]]], baseline: str) -> dict[str, list[list[float]]]:
    """Computes relative gains in percent, 100 (x - b) / b, where b is the mean of the baseline's runs.

    Args:
      values: by name, for every evaluation the metric of each run of that name.
      baseline: one of the names.
    """
    base = [statistics.mean(runs) for runs in values[baseline]]
    return {
        name: [[100 * (x - b) / b for x in runs] for runs, b in zip(of_name, base, strict=True)]
        for name, of_name in values.items()
    }


def data(study: Study) -> dict:
    """Computes gains over the first name on every evaluation that all runs share; runs of one name are seeds."""
    names = list(dict.fromkeys(source.name for source in study.sources))
    baseline = names[0]
    if len(names) < 2:
        raise EndxError("gains need a baseline and at least one more --run with another name")
    found = []
    for source in study.sources:
        entries = [entry for entry in read_evaluations(source) if entry["system"] == SYSTEM]
        of_run: dict[tuple, float] = {}
        for entry in entries:
            of_run.setdefault(_identity(entry), metric_of(entry, METRIC))
        found.append((source.name, of_run))
    common = [evaluation for evaluation in found[0][1] if all(evaluation in of_run for _, of_run in found)]
    if not common:
        raise EndxError(f"no evaluation of {SYSTEM} is common to all runs: endx evaluate --data=... makes them")
    values = {
        name: [[of_run[evaluation] for other, of_run in found if other == name] for evaluation in common]
        for name in names
    }
    if min(map(statistics.mean, values[baseline])) == 0:
        raise EndxError(f"{METRIC} of {baseline} is 0, to which nothing is relative: give another --run first")
    return {
        "metric": METRIC,
        "baseline": baseline,
        "evaluations": [dict(evaluation) for evaluation in common],
        "values": values,
    }


def _identity(entry: dict) -> tuple[tuple[str, object], ...]:
    """Returns the data set, split, pool and direction of an evaluation."""
    parts = {name: entry.get(name, "") for name in PARTS}
    parts["dataset"] = dataset_name(parts["dataset"])
    return tuple((parts | {name: entry[name] for name in ("questions", "candidates")}).items())


def dataset_name(path: str) -> str:
    """Returns a data set's label: the last part of its name; for a file, its folder and name."""
    place = pathlib.PurePath(path)
    stem, dot, _ = place.name.partition(".")
    return f"{place.parent.name}/{stem}".lstrip("/") if dot else place.name


def draw(data: dict):
    """Draws a group of bars for each evaluation; dots show single runs."""
    found, shown = gains(data["values"], data["baseline"]), data["evaluations"]
    others = [name for name in found if name != data["baseline"]]
    figure, (axis,) = style.panels(
        1, columns=1, height=3.0, width=min(style.WIDTH, 2.2 + 0.42 * len(others) * len(shown))
    )
    width = 0.8 / len(others)
    for number, name in enumerate(others):
        places = [group + (number - (len(others) - 1) / 2) * width for group in range(len(shown))]
        means = [statistics.mean(runs) for runs in found[name]]
        bars = axis.bar(places, means, width * 0.9, color=style.look(number)["color"], label=name)
        axis.bar_label(bars, [_signed(mean) for mean in means], fontsize=7.5, padding=2)
        for place, runs in zip(places, found[name], strict=True):
            if len(runs) > 1:
                axis.scatter([place] * len(runs), runs, s=9, c="black", zorder=3, linewidths=0)
    axis.axhline(0, color="black", linewidth=0.8)
    axis.set_xticks(range(len(shown)), [_label(entry) for entry in shown])
    axis.tick_params(axis="x", length=0)
    axis.margins(y=0.14)
    axis.set_ylabel(f"{style.metric_name(data['metric'])} relative to {data['baseline']} (%)")
    axis.grid(True, axis="y")
    figure.legend(loc="outside lower center", ncols=min(len(others), 4))
    return figure


def _signed(gain: float) -> str:
    return f"{gain:+.{0 if abs(gain) >= 100 else 1}f}".replace("-", "−")


def _label(entry: dict) -> str:
    pool = "questions" if entry["direction"] == "answer_to_question" else entry["pool"]
    return f"{entry['dataset']}\n{entry['candidates']:,} {pool}"


FIGURE = Figure("gains over a baseline in percent of it, a group of bars an evaluation", data, draw)
