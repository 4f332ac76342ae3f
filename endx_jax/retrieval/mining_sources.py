"""What hard negatives are mined from: rankings by BM25, by embeddings in memory, and by an index."""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import numpy as np
import tqdm

from endx_jax.data.records import RetrievalSet
from endx_jax.models.dual_encoder import SIDES
from endx_jax.retrieval.bm25 import BM25, highest
from endx_jax.retrieval.mining import Ranked, lowest_right
from endx_jax.retrieval.search import Neighbours, top_k
from endx_jax.retrieval.snapshot import Snapshot

# (side, texts) to float32 [n, E], of unit norm where embeddings are compared by cosine.
Encode = Callable[[str, Sequence[str]], np.ndarray]
# Rows, int [n], to their embeddings, float32 [n, E].
Embedded = Callable[[np.ndarray], np.ndarray]

# Pairs whose embeddings are multiplied at a time.
PAIRS = 65536


def rank_by_bm25(records: RetrievalSet, depth: int, *, progress: bool = False) -> Ranked:
    """The `depth` best by BM25; candidates without a word of the question are not ranked."""
    score_block = BM25.of_texts(records.candidates).score_block(records.questions)
    rows = np.full((len(records.questions), min(depth, len(records.candidates))), -1, np.int32)
    scores, lowest = np.zeros(rows.shape, np.float32), np.zeros(len(rows), np.float32)
    for n in tqdm.trange(len(rows), desc="ranking by BM25", unit="question", disable=not progress, leave=False):
        found = score_block(n, n + 1)[0]  # one by one: a score for every candidate takes room
        best = highest(found, depth)
        rows[n, : len(best)], scores[n, : len(best)] = best, found[best]
        lowest[n] = found[list(records.qrels[n])].min()
    return Ranked(rows, scores, lambda: lowest)


def rank_by_embeddings(encode: Encode, records: RetrievalSet, depth: int) -> Ranked:
    """The `depth` best by inner product, exactly; all embeddings are in memory."""
    questions, candidates = encode("question", records.questions), encode("answer", records.candidates)
    found = top_k(questions, candidates, depth)
    score = InnerProducts(questions.__getitem__, candidates.__getitem__)
    return Ranked(found.rows, found.scores, lambda: lowest_right(score, records.qrels))


def rank_by_index(
    encode: Encode,
    snapshot: Snapshot,
    search: Callable[[Snapshot, np.ndarray, int], Neighbours],
    records: RetrievalSet,
    depth: int,
) -> tuple[RetrievalSet, Ranked]:
    """The `depth` best documents of an index, which may hold more than the set does.

    With the exact search, an index of the set's own candidates gives what `rank_by_embeddings` does.

    Args:
      encode: with the index's model; of the candidates right ones are encoded, where a margin needs their scores.
      snapshot: of the index.
      search: (snapshot, questions [Q, E], k) to neighbours, whose row is -1 where fewer are found.
      records: the set.
      depth: documents a question.

    Returns:
      The set, its candidates followed by the found documents of other texts; and the ranking of those.
    """
    questions = encode("question", records.questions)
    found = search(snapshot, questions, depth)
    row = {text: n for n, text in enumerate(records.candidates)}
    known = set(records.candidate_ids)
    texts, ids = [*records.candidates], [*records.candidate_ids]
    of_document = {-1: -1}
    for document_row in np.unique(found.rows[found.rows >= 0]).tolist():
        document = snapshot.document(document_row)
        if document.text not in row:
            row[document.text] = len(texts)
            texts.append(document.text)
            ids.append(_free(document.id, known))
        of_document[document_row] = row[document.text]
    grown = dataclasses.replace(records, candidates=tuple(texts), candidate_ids=tuple(ids))
    rows = np.asarray([[of_document[n] for n in own] for own in found.rows.tolist()], np.int32)

    score = InnerProducts(questions.__getitem__, _Encoded(functools.partial(encode, "answer"), records.candidates))
    return grown, Ranked(rows.reshape(found.rows.shape), found.scores, lambda: lowest_right(score, records.qrels))


class InnerProducts:
    """Scores of (question, candidate) pairs by their embeddings."""

    def __init__(self, questions: Embedded, candidates: Embedded):
        """Takes what gives embeddings of rows, of each side."""
        self._questions, self._candidates = questions, candidates

    @classmethod
    def of_texts(cls, encode: Encode, questions: Sequence[str], candidates: Sequence[str]) -> "InnerProducts":
        """Of texts, each of which is encoded when it is first asked about."""
        sides = zip(SIDES, (questions, candidates), strict=True)
        return cls(*(_Encoded(functools.partial(encode, side), texts) for side, texts in sides))

    def __call__(self, pairs: np.ndarray) -> np.ndarray:
        """Float32 [n] of int [n, 2]."""
        scores = np.empty(len(pairs), np.float32)
        for start in range(0, len(pairs), PAIRS):
            question, candidate = pairs[start : start + PAIRS].T
            products = np.einsum("ne,ne->n", self._questions(question), self._candidates(candidate))
            scores[start : start + PAIRS] = products
        return scores


class _Encoded:
    """Embeddings of texts, made when they are first asked for."""

    def __init__(self, encode: Callable[[Sequence[str]], np.ndarray], texts: Sequence[str]):
        self._encode, self._texts = encode, texts
        self._place = np.full(len(texts), -1)
        self._embeddings = np.zeros((0, 0), np.float32)

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        fresh = np.unique(rows[self._place[rows] < 0])
        if len(fresh):
            made, known = self._encode([self._texts[row] for row in fresh.tolist()]), len(self._embeddings)
            self._place[fresh] = np.arange(known, known + len(fresh))
            self._embeddings = np.concatenate([self._embeddings, made]) if known else made
        return self._embeddings[self._place[rows]]


def _free(name: str, taken: set[str]) -> str:
    """The id, or one like it that nothing else has; it is taken from then on."""
    while name in taken:
        name = f"{name}+"
    taken.add(name)
    return name
