"""Output files of evaluations: index of an evaluated pool, and results of the evaluation of an index."""

import json
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from endx_jax.data.documents import Document
from endx_jax.data.relevance import Answered, Judged
from endx_jax.errors import InUse
from endx_jax.experiment.workdir import RESULTS
from endx_jax.files import replacing
from endx_jax.parallel.console import say
from endx_jax.retrieval import trec
from endx_jax.retrieval.evaluate import Evaluation
from endx_jax.retrieval.index import write_index
from endx_jax.retrieval.index_evaluation import AnswerEvaluation
from endx_jax.retrieval.results import COLUMNS, entry_of, write_results
from endx_jax.retrieval.snapshot import Snapshot
from endx_jax.retrieval.tables import format_table

SYSTEM = "index"


def write_pool(
    path: pathlib.Path,
    embeddings: np.ndarray,
    documents: Sequence[Document],
    *,
    metric: str,
    model: Mapping[str, object],
    corpus: Mapping[str, object],
) -> None:
    """Writes encoded documents as an index; logs a line if the existing index is in use.

    The arguments are those of `write_index`.
    """
    try:
        write_index(path, embeddings, documents, metric=metric, model=model, corpus=corpus)
    except InUse as reason:
        say(f"note: the index was not written: {reason}")


def write_judged(
    folder: pathlib.Path,
    about: Mapping[str, object],
    snapshot: Snapshot,
    judged: Judged,
    right: Sequence[Sequence[int]],
    gains: Sequence[Sequence[int]],
    evaluation: Evaluation,
) -> str:
    """Writes qrels, run, metrics of each question and mean metrics; returns a table of the means.

    Args:
      folder: output folder.
      about: further entries of `results.json`: data, index and model.
      snapshot: searched snapshot of the index.
      judged: questions.
      right: rows of the right documents of each question.
      gains: their grades.
      evaluation: result of `evaluate_judged`.
    """
    rows = np.unique(np.concatenate([evaluation.top_ids.ravel(), *map(np.asarray, right)]))
    names = _write_run(folder, snapshot, rows, judged.ids, evaluation)
    positions = [np.searchsorted(rows, some).tolist() for some in right]
    trec.write_qrels(folder / "qrels.trec", judged.ids, names, positions, gains)
    trec.write_per_question(folder / f"{SYSTEM}.per_question.jsonl", judged.ids, evaluation)
    _write_means(folder, about, evaluation)
    return format_table({SYSTEM: evaluation.metrics}, COLUMNS)


def write_answered(
    folder: pathlib.Path,
    about: Mapping[str, object],
    snapshot: Snapshot,
    asked: Sequence[Answered],
    evaluation: AnswerEvaluation,
) -> str:
    """Writes run, rank of the first hit of each question and accuracies; returns a table of the accuracies.

    Args:
      folder: output folder.
      about: further entries of `results.json`: data, index and model.
      snapshot: searched snapshot of the index.
      asked: questions with answer strings.
      evaluation: result of `evaluate_answered`.
    """
    ids = [question.id for question in asked]
    _write_run(folder, snapshot, np.unique(evaluation.top_ids), ids, evaluation)
    with replacing(folder / f"{SYSTEM}.per_question.jsonl") as file:
        for name, first in zip(ids, evaluation.first.tolist(), strict=True):
            hits = {key: float(first <= int(key.partition("@")[2])) for key in evaluation.metrics}
            row = {"id": name, "ranks": [first] if np.isfinite(first) else [], **hits}
            file.write(json.dumps(row) + "\n")
    _write_means(folder, about, evaluation)
    return format_table({SYSTEM: evaluation.metrics}, tuple(evaluation.metrics))


def _write_run(
    folder: pathlib.Path,
    snapshot: Snapshot,
    rows: np.ndarray,
    ids: Sequence[str],
    evaluation: Evaluation | AnswerEvaluation,
) -> list[str]:
    """Writes the TREC run; returns the ids of the documents in `rows`."""
    documents = snapshot.read_documents(rows.tolist())
    names = [documents[row].id for row in rows.tolist()]
    top = np.searchsorted(rows, evaluation.top_ids)
    trec.write_run(folder / f"{SYSTEM}.run.trec", ids, names, top, evaluation.top_scores, SYSTEM)
    return names


def _write_means(folder: pathlib.Path, about: Mapping[str, object], evaluation: Evaluation | AnswerEvaluation) -> None:
    entry = entry_of({**about, "direction": "question_to_answer"}, "index", SYSTEM, evaluation)
    write_results(folder / RESULTS, {SYSTEM: evaluation}, [entry])
