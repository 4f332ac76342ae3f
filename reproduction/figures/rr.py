"""Precision over recall of all pairs in one ranking: Figures 4 to 7 of RR (Cakaloglu et al. 2020)."""

import pathlib

from endx_jax import json_files
from endx_jax.errors import EndxError
from endx_jax.settings import check_choice
from reproduction.figures import drawing
from reproduction.figures.study import Study
from reproduction.layers import TEST


def precision_recall(study: Study) -> dict:
    """Returns the curves of systems of measured layers, `FOLDER#SYSTEM`, all on one set."""
    models, sets = [], []
    for source in study.sources:
        folder, _, system = source.place.rpartition("#")
        measured = json_files.read_json_file(pathlib.Path(folder) / "layers.json")
        check_choice(f"{source.name}: the system of {folder}", system, measured["systems"])
        found = measured["systems"][system][TEST]
        models.append({"name": source.name, "average_precision": found["metrics"]["ap"], **found["curve"]})
        sets.append(measured["sets"][TEST])
        if sets[-1] != sets[0]:
            raise EndxError(f"{source.name} was measured on {sets[-1]}, {study.sources[0].name} on {sets[0]}")
    return {**sets[0], "models": models}


def draw_precision_recall(data: dict):
    """Draws one line for each system, with its average precision in the legend."""
    figure, (axis,) = drawing.panels(1, columns=1, height=3.4, width=4.6)
    for model in data["models"]:
        label = f"{model['name']} (AP {model['average_precision']:.2f})"
        axis.plot(model["recall"], model["precision"], label=label, marker="")
    axis.set(xlim=(0, 1), ylim=(0, 1.01), xlabel="recall", ylabel="precision")
    axis.set_title(f"{data['right']:,} right among {data['questions']:,} × {data['candidates']:,} pairs")
    axis.grid(True)
    axis.legend(loc="upper right")
    return figure
