"""Precision-recall curves of systems that `endx layers` has measured, read from the folder that it wrote."""

import csv
import json
import pathlib

from endx_jax.analysis.study import Source
from endx_jax.errors import EndxError, nearest

# Between the folder and the name of one of its systems.
MARK = "#"


def is_layers(source: Source) -> bool:
    """Whether a source is a system of such a folder, `FOLDER#SYSTEM`."""
    return MARK in source.place


def read_curve(source: Source) -> tuple[dict, dict]:
    """One system's part of the figure, and the counts of questions, candidates and right pairs that it is of.

    Raises:
      EndxError: the folder is none of `endx layers`, or has no such system.
    """
    folder, _, system = source.place.rpartition(MARK)
    try:
        report = json.loads((pathlib.Path(folder) / "layers.json").read_text(encoding="utf-8"))
        with open(pathlib.Path(folder) / "precision_recall.csv", encoding="utf-8", newline="") as stream:
            points = [row for row in csv.DictReader(stream) if row["system"] == system]
        metrics = {entry["system"]: entry["metrics"]["test"] for entry in report["systems"]}
        counts = report["sets"]["test"]
    except (OSError, ValueError, KeyError, TypeError) as failure:
        raise EndxError(f"{source.name}: {folder} is no folder that endx layers wrote ({failure!r})") from None
    if system not in metrics:
        known = ", ".join(metrics)
        raise EndxError(f"{source.name}: {folder} has no system {system!r}{nearest(system, metrics)}; it has {known}")
    curve = {name: [float(point[name]) for point in points] for name in ("recall", "precision")}
    return {"name": source.name, "average_precision": metrics[system]["ap"], **curve}, counts
