"""Figures 2 to 4 of Dong et al. (2022): overlap of the sides, gains over ADE, and measures over the size of towers."""

import jax
import numpy as np

from endx_jax.errors import EndxError
from endx_jax.experiment.saved_model import read_model
from endx_jax.parallel.console import say
from reproduction.figures import drawing
from reproduction.figures.drawing import rounded, tsne
from reproduction.figures.study import Study, one_to_one
from reproduction.separation import probe_accuracy, same_side_neighbours

# Pairs that are drawn (Dong et al.: 400), and that are measured at most.
DRAWN, MEASURED = 400, 2000
EVALUATION = ("pool", "direction", "questions", "candidates")


def overlap(study: Study) -> dict:
    """Computes t-SNE of the same pairs for every model, and two measures of the separation of the sides."""
    pairs = np.random.default_rng(0).permutation(one_to_one(study.records.qrels))[:MEASURED]
    models = []
    for source in study.sources:
        sides = [study.embed(source, side)[rows] for side, rows in zip(("question", "answer"), pairs.T, strict=True)]
        shown = [side[:DRAWN] for side in sides]
        say(f"{source.name}: t-SNE of {len(shown[0]):,} pairs")
        places = tsne(np.concatenate(shown), perplexity=30.0)
        models.append(
            {
                "name": source.name,
                "question": rounded(places[: len(shown[0])]),
                "answer": rounded(places[len(shown[0]) :]),
                "probe_accuracy": probe_accuracy(*sides),
                "same_side_neighbours": same_side_neighbours(*sides),
            }
        )
    return {"models": models, "measured": len(pairs)}


def draw_overlap(data: dict):
    """Draws one panel for each model, with its measures below."""
    models = data["models"]
    columns = min(len(models), 5)
    figure, axes = drawing.panels(len(models), columns=columns, height=drawing.WIDTH / columns + 0.75)
    for panel, model in zip(axes, models, strict=True):
        for side, colour, marker in (("question", drawing.QUESTION, "o"), ("answer", drawing.ANSWER, "^")):
            x, y = np.asarray(model[side]).T
            panel.scatter(x, y, s=5, c=colour, marker=marker, linewidths=0, alpha=0.75, label=f"{side}s")
        measures = f"linear probe {model['probe_accuracy']:.2f}\nsame side {model['same_side_neighbours']:.2f}"
        drawing.projection(panel, model["name"], measures)
    drawing.legend(figure, axes[0], 2, markerscale=2.2)
    return figure


def gains(study: Study) -> dict:
    """Computes gains in MRR over the first run, in per cent of it, on every evaluation that all runs share."""
    of_runs = [
        {tuple(entry.get(key, "") for key in EVALUATION): entry["metrics"]["mrr"] for entry in source.evaluations()}
        for source in study.sources
    ]
    common = [evaluation for evaluation in of_runs[0] if all(evaluation in of_run for of_run in of_runs)]
    if len(of_runs) < 2 or not all(of_runs[0][evaluation] for evaluation in common):
        raise EndxError("gains need a baseline with an MRR above 0, and another run")
    found = {
        source.name: [100 * (of_run[one] / of_runs[0][one] - 1) for one in common]
        for source, of_run in zip(study.sources[1:], of_runs[1:], strict=True)
    }
    evaluations = [dict(zip(EVALUATION, one, strict=True)) for one in common]
    return {"baseline": study.sources[0].name, "evaluations": evaluations, "gains": found}


def draw_gains(data: dict):
    """Draws a group of bars for each evaluation."""
    found, shown = data["gains"], data["evaluations"]
    width = min(drawing.WIDTH, 2.2 + 0.42 * len(found) * len(shown))
    figure, (axis,) = drawing.panels(1, columns=1, height=3.0, width=width)
    width = 0.8 / len(found)
    for number, (name, values) in enumerate(found.items()):
        places = [group + (number - (len(found) - 1) / 2) * width for group in range(len(shown))]
        bars = axis.bar(places, values, width * 0.9, label=name)
        axis.bar_label(bars, [f"{value:+.1f}" for value in values], fontsize=7.5, padding=2)
    axis.axhline(0, color="black", linewidth=0.8)
    axis.set_xticks(range(len(shown)), [f"{one['candidates']:,} {one['pool']}" for one in shown])
    axis.margins(y=0.14)
    axis.set_ylabel(f"MRR relative to {data['baseline']} (%)")
    axis.grid(True, axis="y")
    drawing.legend(figure, axis, min(len(found), 4))
    return figure


def sizes(study: Study) -> dict:
    """Computes tower size, token table included, and metrics of the runs of every name."""
    lines: dict[str, list[dict]] = {}
    for source in study.sources:
        model = read_model(source.workdir)
        tower = model.dual_encoder.tower_params(model.abstract_params["dual_encoder"], "question")
        metrics = {name: source.evaluations()[0]["metrics"][name] for name in drawing.MEASURES}
        parameters = sum(leaf.size for leaf in jax.tree.leaves(tower))
        lines.setdefault(source.name, []).append({"parameters": parameters, **metrics})
    return {"lines": lines}


def draw_sizes(data: dict):
    """Draws one panel for each metric and one line for each name."""
    figure, axes = drawing.panels(len(drawing.MEASURES), columns=2, height=3.0)
    for axis, (metric, label) in zip(axes, drawing.MEASURES.items(), strict=True):
        for name, runs in data["lines"].items():
            points = sorted((run["parameters"] / 1e6, 100 * run[metric]) for run in runs)
            axis.plot(*zip(*points, strict=True), label=name)
        axis.set(xlabel="parameters of a tower (millions)", ylabel=f"{label} (%)")
        axis.grid(True, axis="y")
    drawing.legend(figure, axes[0], min(len(data["lines"]), 6))
    return figure
