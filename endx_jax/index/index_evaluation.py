"""Evaluation on a whole index, by the ids of right documents or by answer strings, and its ranking for mining."""

import dataclasses
import functools
import itertools
from collections.abc import Sequence, Set
from typing import NamedTuple

import numpy as np

from endx_jax.data.formats.answer_strings import contains_answer, searchable
from endx_jax.data.sets.examples import Example, Judgements, texts_of
from endx_jax.data.sets.records import RetrievalSet
from endx_jax.errors import EndxError
from endx_jax.index.approximate import EXACT
from endx_jax.index.snapshot import Snapshot
from endx_jax.index.text_search import DENSE, TextRanker
from endx_jax.ranking.evaluate import Evaluation, default_block, evaluate_scores
from endx_jax.ranking.hybrid import Hybrid
from endx_jax.ranking.mining import EncodedOnDemand, Ranked, Similarities, encoded, lowest_right
from endx_jax.ranking.search import best_of_groups
from endx_jax.ranking.systems import EncodeSide

# Values of k for top-k accuracy (DPR; Dong et al. 2022, Table 3).
CUTOFFS = (5, 20, 100)


class JudgementRows(NamedTuple):
    """Judgements of the documents of an index, by rows of a snapshot.

    Attributes:
      right: for each question the rows of its right documents, ascending.
      gains: their grades.
      excluded: for each question the rows of documents that are not ranked for it.
    """

    right: list[list[int]]
    gains: list[list[int]]
    excluded: list[list[int]]


def judgements_by_text(snapshot: Snapshot, records: RetrievalSet) -> Judgements:
    """Returns the judgements of a set whose ids were counted, by the ids of the documents with its texts in an index.

    Raises:
      EndxError: a right document is not in the index.
    """
    wanted, ids = set(records.candidates), dict[str, str]()
    for _, document in snapshot:
        for text in wanted.intersection((document.text, document.body)):
            ids.setdefault(text, document.id)
    right = {records.candidates[candidate] for _, candidate in records.pairs}
    _check_found(right - ids.keys(), right, "")
    return dataclasses.replace(
        records, candidate_ids=tuple(ids.get(text, "") for text in records.candidates)
    ).judgements


def find_rows(snapshot: Snapshot, judged: Judgements) -> JudgementRows:
    """Finds the judged documents in an index.

    Raises:
      EndxError: a right document is not in the index.
    """
    wanted = set(itertools.chain(*judged.right))
    rows = snapshot.rows_of(sorted(wanted.union(*judged.excluded)))
    _check_found(wanted - rows.keys(), wanted, ", with its own ids")
    graded = [sorted((rows[name], grade) for name, grade in grades.items()) for grades in judged.right]
    right, gains = ([[pair[n] for pair in of_question] for of_question in graded] for n in (0, 1))
    return JudgementRows(right, gains, [[rows[name] for name in names if name in rows] for names in judged.excluded])


def _check_found(missing: Set[str], wanted: Set[str], how: str) -> None:
    if missing:
        raise EndxError(
            f"{len(missing):,} of {len(wanted):,} right documents are not in the index, such as {min(missing)[:80]!r}: "
            f"encode the corpus that was judged{how}"
        )


def evaluate_judged(snapshot: Snapshot, judged: JudgementRows, questions: np.ndarray, *, depth: int) -> Evaluation:
    """Ranks the right documents among all of the index by `evaluate_scores`.

    The scores that are computed at a time take an eighth of the memory of the embeddings, or 64 MB.

    Args:
      snapshot: state of the index; deleted documents are ignored.
      judged: judgements of Q questions.
      questions: float32 [Q, E], as the index's model encodes them.
      depth: number of best documents kept per question.

    Returns:
      The evaluation of documents by their best passages; a document's id in it is the row of its first passage.
    """
    rows, bytes_of_row = len(snapshot.living), snapshot.info.width * snapshot.info.dtype.itemsize
    of_passages, first = snapshot.corpus.scores(questions), np.searchsorted(snapshot.of, snapshot.of)

    def of_documents(start: int, stop: int) -> np.ndarray:
        return best_of_groups(np.asarray(of_passages(start, stop)), first, rows)

    evaluation = evaluate_scores(
        of_passages if np.array_equal(first, np.arange(rows)) else of_documents,
        judged.right,
        candidates=rows,
        gains=judged.gains,
        excluded=judged.excluded if any(judged.excluded) else None,
        block=max(default_block(rows), min(bytes_of_row // 32, 1024)),
        depth=min(depth, len(snapshot)),
    )
    return dataclasses.replace(evaluation, candidates=len(snapshot))


def evaluate_answered(
    snapshot: Snapshot,
    answered: Sequence[Example],
    questions: np.ndarray,
    *,
    cutoffs: Sequence[int] = CUTOFFS,
) -> Evaluation:
    """Computes top-k accuracy as in DPR (Karpukhin et al. 2020) and Dong et al. (2022): see `answer_strings`.

    Args:
      snapshot: state of the index.
      answered: Q questions with the strings that answer them, their right passages.
      questions: float32 [Q, E], as the index's model encodes them.
      cutoffs: the values of k.

    Returns:
      The metrics `accuracy@k`, 1 if the best passage of one of the best k documents contains an answer. The only rank
      of a question is that of its first such document; inf if none of the best documents is one. A document's id is
      the row of its first passage.
    """
    asked = [example.question for example in answered]
    best = TextRanker(EXACT).rank(
        snapshot, asked, max(cutoffs), embeddings=questions, hybrid=Hybrid(known=0.0), mode=DENSE, where=None
    )
    documents = snapshot.documents({row for ranking in best for row, _ in ranking})
    # Answers in titles are ignored. A document that was deleted since contains no answer.
    texts = {row: searchable(document.body) for row, document in documents.items()}
    first = np.full((len(answered), 1), np.inf, np.float32)
    for n, (example, ranking) in enumerate(zip(answered, best, strict=True)):
        answers = [searchable(answer) for answer in texts_of(example.right)]
        hits = (rank for rank, (row, _) in enumerate(ranking, 1) if contains_answer(texts.get(row, ""), answers))
        first[n] = next(hits, np.inf)
    values = {f"accuracy@{k}": (first[:, 0] <= k).astype(np.float32) for k in cutoffs}
    rows = np.array([[row for row, _ in ranking] for ranking in best], np.int32)
    scores = np.array([[score for _, score in ranking] for ranking in best], np.float32)
    rows = np.searchsorted(snapshot.of, snapshot.of[rows]).astype(np.int32)
    return Evaluation(values, first, rows, scores, len(snapshot))


def rank_by_index(
    encode: EncodeSide, snapshot: Snapshot, records: RetrievalSet, depth: int
) -> tuple[RetrievalSet, Ranked]:
    """Ranks the `depth` best documents of an index, which may hold more documents than the set.

    An index of the set's own candidates gives the result of `rank_by_embeddings`. A document is a candidate of the set
    if its text, with or without its title, is.

    Args:
      encode: encodes with the index's model; right candidates are encoded only if a margin needs their scores.
      snapshot: state of the index.
      records: data set.
      depth: documents per question.

    Returns:
      The set, extended by the found documents with other texts; and the ranking of its candidates.
    """
    questions = encode("question", records.questions)
    nearest = snapshot.corpus.search(questions, depth)
    row = {text: n for n, text in enumerate(records.candidates)}
    known = set(records.candidate_ids)
    texts, ids = [*records.candidates], [*records.candidate_ids]
    of_document: dict[int, int] = {}
    for document_row, document in sorted(snapshot.documents(np.unique(nearest.rows).tolist()).items()):
        text = next(filter(row.__contains__, (document.text, document.body)), document.text)
        if text not in row:
            name = document.name
            while name in known:  # another candidate's
                name += "+"
            known.add(name)
            row[text] = len(texts)
            texts.append(text)
            ids.append(name)
        of_document[document_row] = row[text]
    grown = dataclasses.replace(records, candidates=tuple(texts), candidate_ids=tuple(ids))
    found = nearest.rows.ravel().tolist()
    rows = np.array([of_document.get(n, -1) for n in found], np.int32).reshape(nearest.rows.shape)
    last = np.argsort(rows < 0, axis=1, kind="stable")  # documents that were deleted meanwhile
    rows, scores = (np.take_along_axis(values, last, axis=1) for values in (rows, nearest.scores))
    score = Similarities(encoded(questions), EncodedOnDemand(functools.partial(encode, "answer"), records.candidates))
    return grown, Ranked(rows, scores, lambda: lowest_right(score, records.qrels))
