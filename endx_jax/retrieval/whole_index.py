"""A model judged on a whole index: by the ids of right documents, or by strings that answer the questions."""

import dataclasses
import functools
from collections.abc import Iterable, Sequence

import numpy as np

from endx_jax.data.answer_match import holds, seamed
from endx_jax.data.answered import Answered
from endx_jax.data.documents import Document
from endx_jax.data.records import pad_ids
from endx_jax.errors import EndxError
from endx_jax.retrieval.evaluate import Evaluation
from endx_jax.retrieval.snapshot import Snapshot
from endx_jax.retrieval.streamed_ranks import streamed_ranks

# Top-k accuracy is reported for these (DPR; Dong et al. 2022, Table 3).
CUTOFFS = (5, 20, 100)


def rows_of(snapshot: Snapshot, ids: Iterable[str]) -> dict[str, int]:
    """The rows of documents with these ids, found in one pass that keeps nothing else.

    Raises:
      EndxError: there is no document with one of the ids.
    """
    wanted = set(ids)
    found = {document.id: row for row, document in snapshot.documents() if document.id in wanted}
    missing = wanted - found.keys()
    if missing:
        raise EndxError(
            f"{len(missing):,} of {len(wanted):,} right documents are not in the index, such as {min(missing)!r}: "
            "encode the corpus that the judgements are of, with its own ids"
        )
    return found


def evaluate_judged(
    snapshot: Snapshot, questions: np.ndarray, right: Sequence[Sequence[int]], depth: int
) -> Evaluation:
    """Ranks right documents among all of the index, exactly, as `evaluate` does; a block of it at a time.

    Args:
      snapshot: of the index; deleted documents do not count.
      questions: float32 [Q, E], as the index's model encodes them.
      right: for each question the rows of its right documents.
      depth: how many of the best are kept for each question.
    """
    found = snapshot.search(questions, depth)
    ranks = streamed_ranks(
        questions, pad_ids(right), snapshot.embeddings, scales=snapshot.scales, where=snapshot.living
    )
    return Evaluation.of(ranks, found.rows, found.scores, len(snapshot))


@dataclasses.dataclass(frozen=True, eq=False)
class AnswerEvaluation:
    """What `evaluate_answered` found for Q questions.

    Attributes:
      metrics: `accuracy@k`, the share of questions with an answer in one of the best k documents, in [0, 1].
      first: float32 [Q], the rank of the best document that holds an answer, inf where none of those looked at does.
      top_ids: int32 [Q, depth], rows of the best documents.
      top_scores: float32 [Q, depth].
      candidates: documents in the index.
    """

    metrics: dict[str, float]
    first: np.ndarray
    top_ids: np.ndarray
    top_scores: np.ndarray
    candidates: int


def evaluate_answered(
    snapshot: Snapshot, questions: np.ndarray, asked: Sequence[Answered], cutoffs: Sequence[int] = CUTOFFS
) -> AnswerEvaluation:
    """Top-k accuracy, as DPR (Karpukhin et al. 2020) and OpenNQ in Dong et al. 2022 count it: see `data.answer_match`.

    Args:
      snapshot: of the index.
      questions: float32 [Q, E], as the index's model encodes them.
      asked: Q questions with their answers.
      cutoffs: the values of k.
    """
    found = snapshot.search(questions, max(cutoffs))

    @functools.lru_cache(maxsize=100_000)
    def text(row: int) -> str:
        return seamed(passage(snapshot.document(row)))

    first = np.full(len(asked), np.inf, np.float32)
    for n, (question, rows) in enumerate(zip(asked, found.rows.tolist(), strict=True)):
        answers = [seamed(answer) for answer in question.answers]
        first[n] = next((rank for rank, row in enumerate(rows, start=1) if holds(text(row), answers)), np.inf)
    metrics = {f"accuracy@{k}": float(np.mean(first <= k)) for k in cutoffs}
    return AnswerEvaluation(metrics, first, found.rows, found.scores, len(snapshot))


def passage(document: Document) -> str:
    """A document's text without its title, in which answers do not count."""
    title = document.metadata.get("title")
    return document.text.removeprefix(f"{title} ") if isinstance(title, str) else document.text
