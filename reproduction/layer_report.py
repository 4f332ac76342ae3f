"""Measures of every layer and of the best mixture of layers (RR, Tables 2 to 8)."""

import csv
import json
import pathlib
from collections.abc import Mapping

import numpy as np

from endx_jax.data.records import RetrievalSet
from endx_jax.data.settings import DataSettings
from endx_jax.data.splits import take
from endx_jax.experiment.data import read_splits
from endx_jax.files import replacing, write_text
from endx_jax.metrics.ranking import RECALLS
from endx_jax.retrieval.tables import format_table
from reproduction.layers import IDF, PLAIN, PooledLayers, best_mixture

HELD_OUT, TEST = "held out", "test"
COLUMNS = (*(f"recall@{n}" for n in RECALLS), "avg_recall", "ap")
WEIGHTINGS = {PLAIN: "", IDF: " + idf"}
# Held-out questions that choose the mixture, and parts that its weights are multiples of.
CHOSEN_BY, PARTS = 2000, 4
MIXTURE, EVEN = "best mixture", "mean of layers"
# Points of a precision-recall curve that are written, at even steps of recall.
POINTS = 500


class Report:
    """Measures of every layer, their mean and their best mixture, without and with IDF, on each set.

    Attributes:
      rows: measures by set, then by system; `ap` is the average precision over all pairs.
      weights: weights of the layers, by system.
      curves: recall and precision, by set, then by system.
      sets: numbers of questions, candidates and right pairs, by set.
    """

    def __init__(self, model: str, names: tuple[str, ...], pooled: Mapping[str, PooledLayers]):
        """Chooses the mixtures by recall@1 on the held-out set, and evaluates.

        Args:
          model: its name.
          names: names of its K layers.
          pooled: by set, `HELD_OUT` and `TEST`.
        """
        self.model, self.names = model, names
        self.weights, self._weighting = dict[str, tuple[float, ...]](), dict[str, int]()
        for weighting, suffix in WEIGHTINGS.items():
            systems = {name: tuple(float(n == own) for own in range(len(names))) for n, name in enumerate(names)}
            if len(names) > 1:
                systems[EVEN] = (1 / len(names),) * len(names)
                systems[MIXTURE], _ = best_mixture(pooled[HELD_OUT], weighting, PARTS)
            self.weights |= {name + suffix: weights for name, weights in systems.items()}
            self._weighting |= {name + suffix: weighting for name in systems}
        self.rows: dict[str, dict[str, dict[str, float]]] = {}
        self.curves: dict[str, dict[str, tuple[np.ndarray, np.ndarray]]] = {}
        self.sets = {
            part: {
                "questions": len(vectors.questions),
                "candidates": len(vectors.candidates),
                "right": sum(map(len, vectors.qrels)),
            }
            for part, vectors in pooled.items()
        }
        for part, vectors in pooled.items():
            self.rows[part], self.curves[part] = {}, {}
            for system, weights in self.weights.items():
                found, curve = vectors.evaluate(weights, self._weighting[system])
                self.rows[part][system] = found.metrics | {"ap": curve.average_precision}
                self.curves[part][system] = curve.recall, curve.precision

    @property
    def best(self) -> str:
        """Returns the system with the highest recall@1 on the held-out set."""
        return max(self.weights, key=lambda system: self.rows[HELD_OUT][system]["recall@1"])

    def config(self, system: str) -> str:
        """Returns the flags of `endx train` that build a system."""
        weights, flags = self.weights[system], [f"--config.model.pretrained={self.model}"]
        if weights[0] == 1:
            flags.append("--config.model.encoder=none")
        elif weights[-1] != 1:
            flags.append(f'--config.model.layer_weights="{weights}"')
        if self._weighting[system] == IDF:
            flags.append("--config.model.token_weights=idf")
        return " ".join([*flags, "--config.model.pooling=mean"])

    def tables(self) -> str:
        """Formats a table for each set, the mixtures, and the flags that build the best system as a tower."""
        lines = []
        for part, rows in self.rows.items():
            lines += [f"{part}:", format_table(rows, COLUMNS), ""]
        lines.append("ap: average precision over all pairs of a question and a candidate, ordered by cosine")
        for system, weights in self.weights.items():
            if system.startswith(MIXTURE):
                kept = ", ".join(f"{w:g} {name}" for name, w in zip(self.names, weights, strict=True) if w)
                lines.append(f"{system}: {kept}; chosen by recall@1 on {HELD_OUT}, in steps of {1 / PARTS:g}")
        lines += ["", f"best on {HELD_OUT}: {self.best}; as a tower: {self.config(self.best)}"]
        return "\n".join(lines)

    def write(self, folder: pathlib.Path) -> None:
        """Writes `layers.json` and `precision_recall.csv`."""
        systems = [
            {
                "system": system,
                "layer_weights": self.weights[system],
                "token_weights": "idf" if self._weighting[system] == IDF else "",
                "config": self.config(system),
                "metrics": {part: rows[system] for part, rows in self.rows.items()},
            }
            for system in self.weights
        ]
        contents = {"model": self.model, "sets": self.sets, "layers": self.names, "best": self.best, "systems": systems}
        write_text(folder / "layers.json", json.dumps(contents, indent=1) + "\n")
        with replacing(folder / "precision_recall.csv") as stream:
            table = csv.writer(stream, lineterminator="\n")
            table.writerow(("system", "recall", "precision"))
            for system, (recall, precision) in self.curves[TEST].items():
                points = np.unique(np.searchsorted(recall, np.linspace(0, recall[-1], POINTS)))
                table.writerows((system, f"{recall[n]:.6f}", f"{precision[n]:.6f}") for n in points)


def read_sets(settings: DataSettings) -> dict[str, RetrievalSet]:
    """Reads the test set, and at most `CHOSEN_BY` held-out questions with their candidates."""
    splits = read_splits(settings)
    return {HELD_OUT: take(splits.validation, CHOSEN_BY), TEST: splits.test}
