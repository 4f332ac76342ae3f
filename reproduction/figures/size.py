"""Metric over the number of parameters: Figure 4 of Dong et al. (2022)."""

import statistics

import jax

from endx_jax.errors import EndxError
from endx_jax.experiment.model import read_model
from reproduction.figures import style
from reproduction.figures.figure import Figure
from reproduction.figures.study import Source, Study, metric_of, read_evaluations

METRICS, SYSTEM = ("mrr", "recall@5"), "trained"


def data(study: Study) -> dict:
    """Computes tower size and metrics of the runs of every name; equal sizes are seeds of one run."""
    lines: dict[str, list[dict]] = {}
    judged = set()
    for source in study.sources:
        entries = [entry for entry in read_evaluations(source) if entry["system"] == SYSTEM]
        if not entries:
            raise EndxError(f"{source.name}: {source.place} has no results of the trained model")
        primary = entries[0]
        judged.add((primary["questions"], primary["candidates"]))
        values = {metric: metric_of(primary, metric) for metric in METRICS}
        lines.setdefault(source.name, []).append({"parameters": parameters(source), **values})
    if len(judged) > 1:
        sets = "; ".join(f"{questions:,} questions against {pool:,} candidates" for questions, pool in sorted(judged))
        raise EndxError(f"the runs were evaluated on different sets ({sets}): their metrics do not compare")
    questions, candidates = judged.pop()
    return {"metrics": METRICS, "questions": questions, "candidates": candidates, "lines": lines}


def parameters(source: Source) -> int:
    """Returns the number of parameters of a run's question tower, token table included."""
    model = read_model(source.workdir)
    tower = model.dual_encoder.tower_params(model.abstract_params["dual_encoder"], "question")
    return sum(leaf.size for leaf in jax.tree.leaves(tower))


def means(runs: list[dict], metric: str) -> tuple[list[float], list[float]]:
    """Returns sizes in millions, ascending, and the mean metric in percent for each."""
    sizes = sorted({run["parameters"] for run in runs})
    at = [[run[metric] for run in runs if run["parameters"] == size] for size in sizes]
    return [size / 1e6 for size in sizes], [100 * statistics.mean(values) for values in at]


def draw(data: dict):
    """Draws one panel for each metric and one line for each name; points show single runs."""
    figure, axes = style.panels(len(data["metrics"]), columns=min(len(data["metrics"]), 2), height=3.0)
    for axis, metric in zip(axes, data["metrics"], strict=True):
        for number, (name, runs) in enumerate(data["lines"].items()):
            look = style.look(number)
            axis.plot(*means(runs, metric), label=name, **look)
            single = [run["parameters"] / 1e6 for run in runs], [100 * run[metric] for run in runs]
            axis.scatter(*single, s=5, color=look["color"])
        axis.set(xlabel="parameters of a tower (millions)", ylabel=f"{style.metric_name(metric)} (%)")
        axis.set_xticks(sorted({round(run["parameters"] / 1e6, 1) for runs in data["lines"].values() for run in runs}))
        axis.grid(True, axis="y")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=min(len(data["lines"]), 6))
    return figure


FIGURE = Figure("metrics over the size of a tower, a line a name; runs of one name make a line", data, draw)
