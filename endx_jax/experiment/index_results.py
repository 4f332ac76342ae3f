"""Output files of evaluations: index of an evaluated pool, and results of the evaluation of an index."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from endx_jax.data.sets.documents import Document
from endx_jax.errors import InUse
from endx_jax.experiment.workdir import RESULTS
from endx_jax.index.index import write_index
from endx_jax.index.index_evaluation import JudgementRows
from endx_jax.index.snapshot import Snapshot
from endx_jax.parallel.console import say
from endx_jax.ranking import trec
from endx_jax.ranking.evaluate import Evaluation
from endx_jax.ranking.results import COLUMNS, OWN_ID, entry_of, write_results
from endx_jax.ranking.tables import format_table

SYSTEM = "index"


class IndexResults(NamedTuple):
    """Evaluation of the documents of an index, and their judgements, if they are not judged by answer strings."""

    evaluation: Evaluation
    judged: JudgementRows | None

    def __repr__(self) -> str:
        metrics = self.evaluation.metrics
        table = format_table({SYSTEM: metrics}, COLUMNS if self.judged else tuple(metrics))
        alike = sum(map(bool, self.judged.excluded)) if self.judged else 0
        return f"{table}\n{alike:,} {OWN_ID}" if alike else table


def write_pool(path: pathlib.Path, embeddings: np.ndarray, documents: Sequence[Document], **about: Any) -> None:
    """Writes encoded documents as an index by `write_index`; logs a line if the existing index is in use."""
    try:
        write_index(path, embeddings, documents, **about)
    except InUse as reason:
        say(f"note: the index was not written: {reason}")


def write_index_results(
    folder: pathlib.Path,
    about: Mapping[str, object],
    snapshot: Snapshot,
    question_ids: Sequence[str],
    evaluation: Evaluation,
    judged: JudgementRows | None = None,
) -> None:
    """Writes the run, metrics of each question and mean metrics of the evaluation of an index, and its judgements.

    Args:
      folder: output folder.
      about: further entries of `results.json`: data, index and model.
      snapshot: searched snapshot of the index.
      question_ids: Q external ids.
      evaluation: result of `evaluate_judged` or `evaluate_answered`.
      judged: judgements; None if documents are judged by answer strings.
    """
    ranked = evaluation.top_ids[evaluation.top_scores > -np.inf]
    rows = np.unique(np.concatenate([ranked, *map(np.asarray, judged.right if judged else ())]))
    documents = snapshot.read_documents(rows.tolist())
    names = {row: document.id for row, document in documents.items()}
    trec.write_system(folder, SYSTEM, question_ids, names, evaluation)
    if judged:
        trec.write_qrels(folder / trec.QRELS, question_ids, names, judged.right, judged.gains)
    entry = entry_of({**about, "direction": "question_to_answer"}, "index", SYSTEM, evaluation)
    write_results(folder / RESULTS, {SYSTEM: evaluation.metrics}, [entry])
