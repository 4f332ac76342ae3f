"""Texts in, documents out: an index, and what turns questions into something to look for."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from endx_jax.data.documents import Document
from endx_jax.errors import EndxError
from endx_jax.retrieval.approximate import ENGINES, Approximate
from endx_jax.retrieval.fusion import Ranking, reciprocal_ranks, weighted_scores
from endx_jax.retrieval.index import Index
from endx_jax.retrieval.lexical import Lexical
from endx_jax.retrieval.snapshot import Snapshot
from endx_jax.settings import check, check_choice

Encode = Callable[[list[str]], np.ndarray]

DENSE, BM25, HYBRID = MODES = ("dense", "bm25", "hybrid")
RRF, WEIGHTED = FUSIONS = ("rrf", "weighted")
# Documents of each ranking that are fused, at least: what stands further down changes nothing that is shown.
FUSED = 100


@dataclasses.dataclass(frozen=True)
class Answer:
    """A document that was found.

    Attributes:
      rank: its place, from 1.
      score: what it was ranked by: an inner product, a BM25 score, or what fusion made of both; higher is better.
      document: as the index keeps it.
    """

    rank: int
    score: float
    document: Document


class TextSearch:
    """Searches an index for texts, and changes it.

    One thread may add and delete while others search; each search sees the index at one moment.

    Attributes:
      index: that is searched.
    """

    def __init__(
        self,
        index: Index,
        encode_query: Encode | None = None,
        encode_document: Encode | None = None,
        *,
        engine: str = "exact",
    ):
        """Puts the parts together; nothing is loaded or built before it is needed.

        Args:
          index: to search.
          encode_query: questions to float32 [Q, E], of unit norm where the index's metric is cosine; None: questions
            are asked by BM25 only, or come as embeddings.
          encode_document: the same for documents; None: documents can be added with their embeddings only.
          engine: what finds the best embeddings: `exact`, or one of faiss: `flat`, `ivf` or `hnsw`.
        """
        check_choice("engine", engine, ("exact", *ENGINES))
        self.index = index
        self._encode_query, self._encode_document = encode_query, encode_document
        self._approximate = None if engine == "exact" else Approximate(index.folder, engine)

    def __len__(self) -> int:
        """How many documents there are."""
        return len(self.index)

    def __contains__(self, identifier: str) -> bool:
        return identifier in self.index

    @property
    def width(self) -> int:
        """E of the embeddings."""
        return self.index.manifest.width

    def search(
        self,
        questions: Sequence[str],
        k: int,
        *,
        mode: str = DENSE,
        fusion: str = RRF,
        weight: float = 0.5,
    ) -> list[list[Answer]]:
        """Answers questions.

        Args:
          questions: Q texts.
          k: answers to each, at most; there are fewer where fewer documents are there, or share a word with the
            question (mode `bm25`).
          mode: `dense`, by inner products of embeddings; `bm25`, by words; or `hybrid`, by both.
          fusion: of `hybrid`: `rrf`, reciprocal ranks, or `weighted`, scores; see `retrieval.fusion`.
          weight: of dense scores in `weighted`, from 0 to 1; BM25 has the rest.

        Raises:
          EndxError: for an argument that is none of these.
        """
        embeddings = None
        if mode != BM25 and questions:
            if self._encode_query is None:
                raise EndxError(f"there is no model to encode questions with: mode {BM25!r} needs none")
            embeddings = self._encode_query(list(questions))
        return self.search_embeddings(embeddings, questions, k, mode=mode, fusion=fusion, weight=weight)

    def search_embeddings(
        self,
        embeddings: np.ndarray | None,
        questions: Sequence[str],
        k: int,
        *,
        mode: str = DENSE,
        fusion: str = RRF,
        weight: float = 0.5,
    ) -> list[list[Answer]]:
        """Answers questions that are encoded already.

        Args:
          embeddings: float32 [Q, E] of the questions; None in mode `bm25`.
          questions: Q texts; what they are does not matter in mode `dense`.
          k: as in `search`, as are the others.
          mode: as in `search`.
          fusion: as in `search`.
          weight: as in `search`.
        """
        check_choice("mode", mode, MODES)
        check_choice("fusion", fusion, FUSIONS)
        check(0 <= weight <= 1, f"weight must lie between 0 and 1, and is {weight}")
        check(k >= 1, f"k must be at least 1, and is {k}")
        snapshot = self.index.snapshot
        if not questions:
            return []
        if mode == DENSE:
            rankings = self._dense(snapshot, embeddings, k)
        elif mode == BM25:
            rankings = self._lexical.search(snapshot, questions, k)
        else:
            depth = max(k, FUSED)
            both = self._dense(snapshot, embeddings, depth), self._lexical.search(snapshot, questions, depth)
            rankings = [
                reciprocal_ranks(pair) if fusion == RRF else weighted_scores(pair, (weight, 1 - weight))
                for pair in zip(*both, strict=True)
            ]
        return [_answers(snapshot, ranking[:k]) for ranking in rankings]

    def add(self, documents: Sequence[Document], embeddings: np.ndarray | None = None) -> None:
        """Adds documents, each in the place of the one with its id if there is one; on disk too.

        Args:
          documents: n documents.
          embeddings: float32 [n, E]; None: they are encoded here.

        Raises:
          EndxError: as `Index.add`.
        """
        if embeddings is None:
            if self._encode_document is None:
                raise EndxError("there is no model to encode documents with")
            embeddings = self._encode_document([document.text for document in documents])
        self.index.add(documents, embeddings, replace=True)

    def delete(self, ids: Iterable[str]) -> None:
        """Deletes documents, on disk too.

        Raises:
          EndxError: as `Index.delete`.
        """
        self.index.delete(ids)

    @functools.cached_property
    def _lexical(self) -> Lexical:
        return Lexical()

    def _dense(self, snapshot: Snapshot, embeddings: np.ndarray | None, k: int) -> Sequence[Ranking]:
        """Rows and scores for each question."""
        embeddings = np.asarray(embeddings, np.float32)
        if self._approximate is None:
            found = snapshot.search(embeddings, k)
        else:
            found = self._approximate.search(snapshot, embeddings, k)
        return [
            [(row, score) for row, score in zip(rows, scores, strict=True) if row >= 0]
            for rows, scores in zip(found.rows.tolist(), found.scores.tolist(), strict=True)
        ]


def _answers(snapshot: Snapshot, ranking: Ranking) -> list[Answer]:
    return [Answer(rank, score, snapshot.document(row)) for rank, (row, score) in enumerate(ranking, start=1)]
