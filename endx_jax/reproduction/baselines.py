"""Rows without training: BM25, and pretrained models as they are."""

import json
import pathlib

from endx_jax.data.records import RetrievalSet
from endx_jax.data.settings import DataSettings
from endx_jax.errors import EndxError
from endx_jax.experiment.data import pools, read_splits
from endx_jax.experiment.manifest import manifest
from endx_jax.files import write_text
from endx_jax.loading import load
from endx_jax.reproduction.outcome import Outcome
from endx_jax.reproduction.plan import Options, slug
from endx_jax.reproduction.table import Row
from endx_jax.retrieval.systems import evaluate_bm25, evaluate_dense

MEASURES = "measures.json"


def bm25(row: Row, options: Options) -> Outcome:
    """Ranks the row's pool by stemmed BM25."""
    return _kept(row, options, lambda pool: evaluate_bm25({"all": pool})["all"].metrics)


def pretrained(row: Row, options: Options) -> Outcome:
    """Ranks the row's pool by a pretrained model."""

    def measure(pool: RetrievalSet) -> dict[str, float]:
        model = load(options.model(row.model))
        return evaluate_dense(model.comparable, {"all": pool}).evaluations["all"].metrics

    return _kept(row, options, measure)


def _kept(row: Row, options: Options, measure) -> Outcome:
    """The measures of a row's pool, kept in a file for the next time."""
    folder = options.output / row.table / slug(row.row)
    file = folder / MEASURES
    try:
        place = options.place_of(row.data)
        if not _is_of(file, place):
            records = read_splits(DataSettings(path=place, pool=row.pool, validation_fraction=0.0)).test
            pool = pools(records, DataSettings(pool=row.pool))[row.pool]
            contents = {"data": place, "manifest": manifest(0, {"sha256": ""}), "metrics": measure(pool)}
            write_text(file, json.dumps(contents, indent=1) + "\n")
    except EndxError as reason:
        return Outcome(row, why=str(reason))
    metrics = json.loads(file.read_text(encoding="utf-8"))["metrics"]
    return Outcome(row, (tuple(100 * metrics[name] for name in row.measures),), runs=(str(folder),))


def _is_of(file: pathlib.Path, place: str) -> bool:
    """Whether a file of measures is there, of these data."""
    return file.exists() and json.loads(file.read_text(encoding="utf-8"))["data"] == place
