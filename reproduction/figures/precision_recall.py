"""Precision over recall of all pairs in one ranking: Figures 4 to 7 and Table 7 of RR (Cakaloglu et al. 2020)."""

import csv
import pathlib

import numpy as np

from endx_jax import json_files
from endx_jax.errors import EndxError
from endx_jax.parallel.console import say
from endx_jax.retrieval.evaluate import precision_recall
from endx_jax.settings import check_choice
from reproduction.figures import style
from reproduction.figures.figure import Figure, rounded
from reproduction.figures.study import Source, Study, bar

# Points of each curve that are kept, at recalls as even as can be; average precision is of all.
POINTS = 400


def thinned(recall: np.ndarray, precision: np.ndarray, points: int = POINTS) -> tuple[np.ndarray, np.ndarray]:
    """Returns at most `points` points of a curve, evenly spaced in recall, the first and last included.

    Args:
      recall: [K], ascending.
      precision: [K].
      points: 2 or more.
    """
    if len(recall) <= points:
        return recall, precision
    wanted = np.linspace(recall[0], recall[-1], points)
    kept = np.unique(np.searchsorted(recall, wanted).clip(max=len(recall) - 1))
    return recall[kept], precision[kept]


def data(study: Study) -> dict:
    """Computes precision, recall and average precision of every model over all question-candidate pairs.

    A source may also be `FOLDER#SYSTEM`, a system that `endx papers layers` has measured.
    """
    study.distinct()
    models, sets = [], []
    for source in study.sources:
        model, counts = read_curve(source) if is_layers(source) else _ranked(study, source)
        models.append(model)
        sets.append(counts)
    for source, counts in zip(study.sources, sets, strict=True):
        if counts != sets[0]:
            first, other = (
                f"{c['questions']:,} questions and {c['candidates']:,} candidates" for c in (sets[0], counts)
            )
            raise EndxError(f"{source.name} was measured on {other}, {study.sources[0].name} on {first}")
    return {**sets[0], "models": models}


def _ranked(study: Study, source: Source) -> tuple[dict, dict]:
    """Computes one model's curve, and the counts behind it."""
    records = study.records
    questions, candidates = len(records.questions), len(records.candidates)
    say(f"{source.name}: ordering {questions * candidates:,} pairs")
    score = study.scores(source, records)
    with bar("passing over the pairs twice") as progress:
        found = precision_recall(score, records.qrels, candidates=candidates, progress=progress)
    recall, precision = thinned(found.recall, found.precision)
    curve = {"recall": rounded(recall, 6), "precision": rounded(precision, 6)}
    model = {"name": source.name, "average_precision": found.average_precision, **curve}
    return model, {"questions": questions, "candidates": candidates, "right": sum(map(len, records.qrels))}


def draw(data: dict):
    """Draws one line for each model, with its average precision in the legend."""
    figure, (axis,) = style.panels(1, columns=1, height=3.4, width=4.6)
    for number, model in enumerate(data["models"]):
        look = style.look(number) | {"marker": ""}
        label = f"{model['name']} (AP {model['average_precision']:.2f})"
        axis.plot(model["recall"], model["precision"], label=label, **look)
    axis.set(xlim=(0, 1), ylim=(0, 1.01), xlabel="recall", ylabel="precision")
    axis.set_title(f"{data['right']:,} right among {data['questions']:,} × {data['candidates']:,} pairs")
    axis.grid(True)
    axis.legend(loc="upper right")
    return figure


FIGURE = Figure("precision over recall of all pairs in one order, with average precision", data, draw)


# Between the folder and the name of one of its systems.
MARK = "#"


def is_layers(source: Source) -> bool:
    """Returns true if a source names a system of a layer report, `FOLDER#SYSTEM`."""
    return MARK in source.place


def read_curve(source: Source) -> tuple[dict, dict]:
    """Returns the curve of one system, and the counts of questions, candidates and right pairs behind it.

    Raises:
      EndxError: the folder was not written by `endx papers layers`, or has no such system.
    """
    folder, _, system = source.place.rpartition(MARK)
    try:
        report = json_files.read(pathlib.Path(folder) / "layers.json")
        with open(pathlib.Path(folder) / "precision_recall.csv", encoding="utf-8", newline="") as stream:
            points = [row for row in csv.DictReader(stream) if row["system"] == system]
        metrics = {entry["system"]: entry["metrics"]["test"] for entry in report["systems"]}
        counts = report["sets"]["test"]
    except (OSError, ValueError, KeyError, TypeError) as failure:
        raise EndxError(f"{source.name}: {folder} is no folder that endx papers layers wrote ({failure!r})") from None
    check_choice(f"{source.name}: the system of {folder}", system, metrics)
    curve = {name: [float(point[name]) for point in points] for name in ("recall", "precision")}
    return {"name": source.name, "average_precision": metrics[system]["ap"], **curve}, counts
