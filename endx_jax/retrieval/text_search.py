"""Text search of an index: dense, BM25, or both fused."""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import numpy as np

from endx_jax.data.documents import Document
from endx_jax.errors import EndxError
from endx_jax.retrieval.approximate import ENGINES, Approximate
from endx_jax.retrieval.bm25 import Lexical
from endx_jax.retrieval.index import Index
from endx_jax.retrieval.snapshot import Snapshot
from endx_jax.settings import check, check_choice

Ranking = Sequence[tuple[int, float]]

# Chosen by Cormack et al. (2009) on pilot runs; results hardly depend on it.
RRF_K = 60


def reciprocal_ranks(rankings: Sequence[Ranking], k: int = RRF_K) -> list[tuple[int, float]]:
    """Fuses rankings by reciprocal ranks (Cormack, Clarke and Buettcher 2009).

    The score of an item is

        sum over the rankings that hold it of 1 / (k + r),

    with its rank r there, from 1. Scores of the rankings are not used, so they need not be comparable.

    Args:
      rankings: pairs of item and score, best first; an item at most once in each.
      k: constant; larger values weight the top ranks less.

    Returns:
      Pairs of item and fused score, best first. Ties are ordered by the first ranking that holds the item, then by
      rank.
    """
    fused: dict[int, float] = {}
    for ranking in rankings:
        for place, (item, _) in enumerate(ranking, start=1):
            fused[item] = fused.get(item, 0.0) + 1 / (k + place)
    return _ordered(fused)


def weighted_scores(rankings: Sequence[Ranking], weights: Sequence[float]) -> list[tuple[int, float]]:
    """Fuses rankings by a convex combination of scores scaled to [0, 1] (Bruch, Gai and Ingber 2023).

    The score of an item is

        sum over rankings i of weights[i] * (score_i - lowest_i) / (highest_i - lowest_i),

    with the lowest and highest score of ranking i. A ranking without the item adds 0, as for its last item;
    a ranking of equal scores adds its whole weight.

    Args:
      rankings: pairs of item and score, best first; an item at most once in each.
      weights: weight of each ranking, such as `(w, 1 - w)`.

    Returns:
      Pairs as in `reciprocal_ranks`.
    """
    fused: dict[int, float] = {}
    for ranking, weight in zip(rankings, weights, strict=True):
        highest, lowest = (ranking[0][1], ranking[-1][1]) if ranking else (0.0, 0.0)
        for item, score in ranking:
            share = (score - lowest) / (highest - lowest) if highest > lowest else 1.0
            fused[item] = fused.get(item, 0.0) + weight * share
    return _ordered(fused)


def _ordered(fused: dict[int, float]) -> list[tuple[int, float]]:
    return sorted(fused.items(), key=lambda pair: -pair[1])


Encode = Callable[[list[str]], np.ndarray]

DENSE, BM25, HYBRID = MODES = ("dense", "bm25", "hybrid")
# Smallest number of documents of each ranking that are fused; lower ones hardly affect the top.
FUSED = 100


@dataclasses.dataclass(frozen=True)
class Answer:
    """Document found for a question.

    Attributes:
      rank: rank, from 1.
      score: inner product, BM25 score, or fused score; higher is better.
      document: document of the index.
    """

    rank: int
    score: float
    document: Document


class TextSearch:
    """Search of an index by texts, and changes to its documents.

    One thread may add and delete while others search; each search uses one snapshot of the index.

    Attributes:
      index: index that is searched.
    """

    def __init__(
        self,
        index: Index,
        encode_query: Encode | None = None,
        encode_document: Encode | None = None,
        *,
        engine: str = "exact",
    ):
        """Stores the arguments; nothing is loaded or built before it is needed.

        Args:
          index: index to search.
          encode_query: encodes questions to float32 [Q, E], of unit norm if the index's metric is cosine; None: only
            BM25 and searches by embeddings are possible.
          encode_document: encodes documents likewise; None: documents can only be added with their embeddings.
          engine: search of embeddings: `exact`, or faiss's `flat`, `ivf` or `hnsw`.
        """
        check_choice("engine", engine, ("exact", *ENGINES))
        self.index = index
        self._encode_query, self._encode_document = encode_query, encode_document
        self._approximate = None if engine == "exact" else Approximate(index.folder, engine)

    def __len__(self) -> int:
        """Returns the number of documents."""
        return len(self.index)

    def __repr__(self) -> str:
        return f"TextSearch({self.index})"

    def search(
        self,
        questions: Sequence[str],
        k: int,
        *,
        embeddings: np.ndarray | None = None,
        mode: str = DENSE,
        weight: float | None = None,
    ) -> list[list[Answer]]:
        """Answers questions.

        Args:
          questions: Q texts.
          k: largest number of answers per question; with `bm25`, documents without a common word are omitted.
          embeddings: float32 [Q, E] of the questions; None: they are computed, unless `mode` is `bm25`.
          mode: `dense` (inner products of embeddings), `bm25`, or `hybrid` (both).
          weight: weight of dense scores in `hybrid`, from 0 to 1; BM25 gets the rest (`weighted_scores`); None:
            fusion by `reciprocal_ranks`.

        Raises:
          EndxError: an argument is not one of these.
        """
        if embeddings is None and mode != BM25 and questions:
            if self._encode_query is None:
                raise EndxError(f"there is no model to encode questions: load one, or search with mode {BM25!r}")
            embeddings = self._encode_query(list(questions))
        snapshot, rankings = self.rank(embeddings, questions, k, mode=mode, weight=weight)
        return [
            [Answer(rank, score, snapshot.document(row)) for rank, (row, score) in enumerate(ranking, start=1)]
            for ranking in rankings
        ]

    def rank(
        self,
        embeddings: np.ndarray | None,
        questions: Sequence[str],
        k: int,
        *,
        mode: str = DENSE,
        weight: float | None = None,
    ) -> tuple[Snapshot, list[Ranking]]:
        """Ranks documents for questions given their embeddings, without reading the documents.

        Args:
          embeddings: float32 [Q, E] of the questions; None in mode `bm25`.
          questions: Q texts; not used in mode `dense`.
          k: see `search`.
          mode: see `search`.
          weight: see `search`.

        Returns:
          The snapshot that was searched, and for each question up to k rows with their scores, best first.
        """
        check_choice("mode", mode, MODES)
        check(weight is None or 0 <= weight <= 1, f"weight must lie between 0 and 1, and is {weight}")
        check(k >= 1, f"k must be at least 1, and is {k}")
        snapshot = self.index.snapshot
        rankings: Sequence[Ranking] = []
        if not questions:
            pass
        elif mode == DENSE:
            rankings = self._dense(snapshot, embeddings, k)
        elif mode == BM25:
            rankings = self._lexical.search(snapshot, questions, k)
        else:
            depth = max(k, FUSED)
            both = self._dense(snapshot, embeddings, depth), self._lexical.search(snapshot, questions, depth)
            rankings = [
                reciprocal_ranks(pair) if weight is None else weighted_scores(pair, (weight, 1 - weight))
                for pair in zip(*both, strict=True)
            ]
        return snapshot, [ranking[:k] for ranking in rankings]

    def add(self, documents: Sequence[Document], embeddings: np.ndarray | None = None) -> None:
        """Adds documents on disk and in memory; a document replaces an existing one with the same id.

        Args:
          documents: n documents.
          embeddings: float32 [n, E]; None: they are computed.

        Raises:
          EndxError: as `Index.add`.
        """
        if embeddings is None:
            if self._encode_document is None:
                raise EndxError("there is no model to encode documents: load one, or give their embeddings")
            embeddings = self._encode_document([document.text for document in documents])
        self.index.add(documents, embeddings, replace=True)

    @functools.cached_property
    def _lexical(self) -> Lexical:
        return Lexical()

    def _dense(self, snapshot: Snapshot, embeddings: np.ndarray | None, k: int) -> Sequence[Ranking]:
        """Returns rows and scores for each question."""
        embeddings = np.asarray(embeddings, np.float32)
        if self._approximate is None:
            found = snapshot.search(embeddings, k)
        else:
            found = self._approximate.search(snapshot, embeddings, k)
        return [
            [(row, score) for row, score in zip(rows, scores, strict=True) if row >= 0]
            for rows, scores in zip(found.rows.tolist(), found.scores.tolist(), strict=True)
        ]
