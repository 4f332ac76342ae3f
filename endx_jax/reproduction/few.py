"""The 500 pairs of ENDX's Table 6: a pool so small that a pair classifier can score all of it."""

import itertools
import json
import pathlib

import numpy as np

from endx_jax.data.records import RetrievalSet
from endx_jax.data.settings import DataSettings
from endx_jax.experiment import workdir as workdirs
from endx_jax.experiment.data import read_splits
from endx_jax.files import write_text
from endx_jax.loading import load
from endx_jax.loading.pairs import load_pairs
from endx_jax.reproduction.outcome import Outcome
from endx_jax.reproduction.plan import Options
from endx_jax.reproduction.table import Row
from endx_jax.reproduction.trained import Budget, trained
from endx_jax.retrieval.rerank import evaluate_pairs
from endx_jax.retrieval.systems import evaluate_dense

PARAGRAPHS, PAIRS = 27, 500
# Beside a run's results: what it makes of these pairs.
FILE = "few.json"


def measure(row: Row, options: Options, budget: Budget) -> Outcome:
    """Trains the row's system where it is not there, and lets it rank the few."""
    return trained(row, options, budget, read=_measures)


def small_pool(records: RetrievalSet, paragraphs: int = PARAGRAPHS, pairs: int = PAIRS) -> RetrievalSet:
    """Questions of the paragraphs with the most of them, one of each in turn, until there are so many right pairs."""
    asked: dict[str, list[int]] = {}
    for question, right in enumerate(records.qrels):
        paragraph = records.candidate_ids[right[0]].partition(".")[0]
        asked.setdefault(paragraph, []).append(question)
    most = sorted(asked.values(), key=len, reverse=True)[:paragraphs]
    in_turn = [row for rows in itertools.zip_longest(*most) for row in rows if row is not None]
    count = np.cumsum([len(records.qrels[row]) for row in in_turn])
    return records.subset(in_turn[: int(np.searchsorted(count, pairs)) + 1], hard_negatives=False)


def _measures(workdir: pathlib.Path, row: Row) -> tuple[float, ...]:
    file = workdir / FILE
    if not file.exists():
        settings = workdirs.read_config(workdir)
        few = small_pool(read_splits(DataSettings(path=settings.data.path, pool="answers")).test)
        rank = _rank_by_pairs if settings.objective.name == "pair" else _rank_by_embeddings
        write_text(file, json.dumps(rank(workdir, few), indent=1) + "\n")
    metrics = json.loads(file.read_text(encoding="utf-8"))
    return tuple(100 * metrics[name] for name in row.measures)


def _rank_by_embeddings(workdir: pathlib.Path, few: RetrievalSet) -> dict[str, float]:
    return evaluate_dense(load(workdir).comparable, {"few": few}).evaluations["few"].metrics


def _rank_by_pairs(workdir: pathlib.Path, few: RetrievalSet) -> dict[str, float]:
    score = load_pairs(workdir)(few.questions, few.candidates)
    return evaluate_pairs(score, None, few, top=0).metrics
