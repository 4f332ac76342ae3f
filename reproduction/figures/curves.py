"""Validation metric over the steps of training, with the spread of the seeds."""

import statistics

from endx_jax.errors import EndxError
from endx_jax.training import metric_log
from reproduction.figures import style
from reproduction.figures.figure import Figure
from reproduction.figures.study import Study

METRIC = "mrr"
LEGEND_WIDTH = 100  # characters of a row of the legend


def data(study: Study) -> dict:
    """Reads the validations of the runs of every name; the runs of one name are its seeds."""
    lines: dict[str, list[dict[str, float]]] = {}
    for source in study.sources:
        logged = metric_log.read_metrics(source.workdir / metric_log.FILE)
        name = f"validation/{METRIC}"
        points = {str(line["step"]): line[name] for line in logged if name in line}
        if not points:
            raise EndxError(
                f"{source.name}: {source.place} has no validation in {metric_log.FILE}: train with "
                "data.validation_fraction above 0 and train.evaluate_every"
            )
        lines.setdefault(source.name, []).append(points)
    return {"metric": METRIC, "lines": lines}


def summary(runs: list[dict[str, float]]) -> list[tuple[int, float, float, float]]:
    """Returns (step, mean, lowest, highest) in per cent of the steps at which all runs of a name were validated."""
    steps = sorted(map(int, set.intersection(*map(set, runs))))
    values = [[100 * run[str(step)] for run in runs] for step in steps]
    return [(step, statistics.fmean(at), min(at), max(at)) for step, at in zip(steps, values, strict=True)]


def draw(data: dict):
    """Draws a line for each name, the mean of its seeds, and a band from the lowest to the highest."""
    columns = max(1, LEGEND_WIDTH // (6 + max(map(len, data["lines"]))))
    rows = -(-len(data["lines"]) // columns)
    figure, (axis,) = style.panels(1, columns=1, height=3.2 + 0.2 * rows)
    for number, (name, runs) in enumerate(data["lines"].items()):
        look = style.look(number)
        steps, mean, low, high = zip(*summary(runs), strict=True)
        axis.plot(steps, mean, label=name, **look)
        axis.fill_between(steps, low, high, color=look["color"], alpha=0.15, linewidth=0)
    axis.set(xlabel="steps", ylabel=f"{style.metric_name(data['metric'])} of held-out articles (%)")
    axis.grid(True, axis="y")
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=columns)
    return figure


FIGURE = Figure("validation MRR over steps, a line a name; runs of one name are its seeds", data, draw, seeds=True)
