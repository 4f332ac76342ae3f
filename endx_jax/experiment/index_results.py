"""Output of evaluations: the pool as an index; for a whole index, `results.json` and TREC files."""

import json
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from endx_jax.data.documents import Document
from endx_jax.data.relevance import Answered, Judged
from endx_jax.errors import InUse
from endx_jax.experiment.workdir import RESULTS
from endx_jax.files import replacing, write_text
from endx_jax.parallel.console import say
from endx_jax.retrieval import trec
from endx_jax.retrieval.evaluate import Evaluation
from endx_jax.retrieval.index import write_index
from endx_jax.retrieval.index_evaluation import AnswerEvaluation
from endx_jax.retrieval.results import COLUMNS
from endx_jax.retrieval.snapshot import Snapshot
from endx_jax.retrieval.tables import format_table

SYSTEM = "index"


def write_pool(
    folder: pathlib.Path,
    embeddings: np.ndarray,
    documents: Sequence[Document],
    *,
    metric: str,
    model: Mapping[str, object],
) -> None:
    """Writes an encoded pool as an index, unless `write_index` may not replace an existing one; then prints the reason.

    The arguments are those of `write_index`.
    """
    try:
        write_index(folder, embeddings, documents, metric=metric, model=model)
    except InUse as reason:
        say(f"note: the evaluated pool was not written as an index: {reason}")


def write_judged(
    folder: pathlib.Path,
    about: Mapping[str, object],
    snapshot: Snapshot,
    judged: Judged,
    right: Sequence[Sequence[int]],
    found: Evaluation,
) -> str:
    """Writes judgements, run, measures of each question and their means; returns the table of means.

    Args:
      folder: to write into.
      about: further entries of `results.json`: the data, the index and its model.
      snapshot: that was searched.
      judged: the questions.
      right: for each question the rows of its right documents.
      found: by `evaluate_judged`.
    """
    rows = np.unique(np.concatenate([found.top_ids.ravel(), *map(np.asarray, right)]))
    names = _write_run(folder, snapshot, rows, judged.ids, found)
    places = [np.searchsorted(rows, some).tolist() for some in right]
    trec.write_qrels(folder / "qrels.trec", judged.ids, names, places)
    trec.write_per_question(folder / f"{SYSTEM}.per_question.jsonl", judged.ids, found)
    _write_means(folder, about, found.metrics, len(judged.ids), found.candidates)
    return format_table({SYSTEM: found.metrics}, COLUMNS)


def write_answered(
    folder: pathlib.Path,
    about: Mapping[str, object],
    snapshot: Snapshot,
    asked: Sequence[Answered],
    found: AnswerEvaluation,
) -> str:
    """Writes the run, the first hit of each question and the accuracies; returns the table of accuracies.

    Arguments are as in `write_judged`; `found` is by `evaluate_answered`.
    """
    ids = [question.id for question in asked]
    _write_run(folder, snapshot, np.unique(found.top_ids), ids, found)
    with replacing(folder / f"{SYSTEM}.per_question.jsonl") as file:
        for name, first in zip(ids, found.first.tolist(), strict=True):
            hits = {key: float(first <= int(key.partition("@")[2])) for key in found.metrics}
            row = {"id": name, "ranks": [first] if np.isfinite(first) else [], **hits}
            file.write(json.dumps(row) + "\n")
    _write_means(folder, about, found.metrics, len(ids), found.candidates)
    return format_table({SYSTEM: found.metrics}, tuple(found.metrics))


def _write_run(
    folder: pathlib.Path,
    snapshot: Snapshot,
    rows: np.ndarray,
    ids: Sequence[str],
    found: Evaluation | AnswerEvaluation,
) -> list[str]:
    """Writes the run, and returns the ids of the documents in `rows`."""
    names = [snapshot.document(row).id for row in rows.tolist()]
    top = np.searchsorted(rows, found.top_ids)
    trec.write_run(folder / f"{SYSTEM}.run.trec", ids, names, top, found.top_scores, SYSTEM)
    return names


def _write_means(
    folder: pathlib.Path, about: Mapping[str, object], metrics: Mapping[str, float], questions: int, candidates: int
) -> None:
    counts = {"questions": questions, "candidates": candidates}
    evaluation = {**about, "direction": "question_to_answer", "pool": "index", "system": SYSTEM, "metrics": metrics}
    contents = {"systems": {SYSTEM: metrics}, "evaluations": [{**evaluation, **counts}]}
    write_text(folder / RESULTS, json.dumps(contents, indent=1) + "\n")
