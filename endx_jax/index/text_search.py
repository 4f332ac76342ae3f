"""Text search of an index: dense, BM25, or both fused."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from endx_jax.data.sets.documents import Document, FoundDocument
from endx_jax.errors import EndxError
from endx_jax.index.approximate import ENGINES, EXACT
from endx_jax.index.index import Index
from endx_jax.index.index_file import COSINE
from endx_jax.index.lexical import Lexical
from endx_jax.index.snapshot import Snapshot, to_rankings
from endx_jax.inference.maxsim import maxsim_of, pooled
from endx_jax.numerics import dequantize, holds_objects
from endx_jax.ranking.hybrid import FUSED, Hybrid, Ranking, default_hybrid, reciprocal_ranks
from endx_jax.ranking.rerank import finite_scores
from endx_jax.settings import check_choice, require

EncodeBatch = Callable[[list[str]], np.ndarray]

DENSE, BM25, HYBRID = MODES = ("dense", "bm25", "hybrid")
# Largest number of documents for which BM25 is used by default; splitting them into words takes seconds.
WORDS_OF = 200_000


class TextSearch:
    """Search of an index by texts, and changes to its documents.

    One thread may add and delete while others search; each search uses one snapshot of the index.

    Attributes:
      index: index that is searched.
      hybrid: fusion of mode `hybrid`.
    """

    def __init__(
        self,
        index: Index,
        encode_query: EncodeBatch | None = None,
        encode_document: EncodeBatch | None = None,
        *,
        engine: str = EXACT,
        hybrid: Hybrid | None = None,
    ):
        """Stores the arguments; nothing is loaded or built before it is needed.

        Args:
          index: index to search.
          encode_query: encodes questions to float32 [Q, E], of unit norm if the index's metric is cosine; None: only
            BM25 and searches by embeddings are possible.
          encode_document: encodes documents likewise; None: documents can only be added with their embeddings.
          engine: search of embeddings: `exact`, or a name in `approximate.ENGINES`.
          hybrid: fusion of mode `hybrid`, such as the model's (`index_model.hybrid_of`); None: the default.
        """
        check_choice("engine", engine, (EXACT, *ENGINES))
        self.index = index
        self.hybrid = hybrid or default_hybrid(cosine=index.info.metric == COSINE)
        self._encode_query, self._encode_document = encode_query, encode_document
        self._engine = None if engine == EXACT else ENGINES[engine]()

    def __len__(self) -> int:
        """Returns the number of documents."""
        return len(self.index)

    def __repr__(self) -> str:
        return f"TextSearch({self.index})"

    @property
    def default_mode(self) -> str:
        """Mode of searches that name none: `hybrid`, unless validation chose weight 0 or the index is very large."""
        return HYBRID if self.hybrid.weight != 0 and len(self) <= WORDS_OF else DENSE

    def describe(self, mode: str) -> str:
        """Returns a line on what a search in a mode searches, and by which scores."""
        reason = ""
        if mode == DENSE == self.default_mode:
            large = f"BM25 is not used by default for more than {WORDS_OF:,} documents"
            reason = f" ({large if self.hybrid.weight != 0 else 'in validation, BM25 did not improve it'})"
        return f"searching {self.index.contents}, mode {mode}{f': {self.hybrid}' if mode == HYBRID else reason}"

    def search(
        self,
        questions: Sequence[str],
        k: int,
        *,
        embeddings: np.ndarray | None = None,
        mode: str | None = None,
        where: Mapping[str, object] | None = None,
    ) -> list[list[FoundDocument]]:
        """Answers questions.

        Args:
          questions: Q texts.
          k: largest number of documents per question, each as its best passage; with `bm25`, documents without a common
            word are omitted.
          embeddings: float32 [Q, E] of the questions, or token vectors, objects [Q]; None: they are computed, unless
            `mode` is `bm25`. With token vectors, the best 100 or more passages are ranked again by those of the index.
          mode: `dense` (inner products of embeddings), `bm25`, or `hybrid` (both, fused by `hybrid`); None: the
            `default_mode`.
          where: filter on the metadata of the documents (see `filters.condition`); None: all documents.

        Raises:
          EndxError: an argument is not one of these.
        """
        mode = mode or self.default_mode
        check_choice("mode", mode, MODES)
        require(k >= 1, f"k must be at least 1, and is {k}")
        if embeddings is None and mode != BM25 and questions:
            if self._encode_query is None:
                raise EndxError(f"there is no model to encode questions: load one, or search with mode {BM25!r}")
            embeddings = self._encode_query(list(questions))
        snapshot = self.index.snapshot
        selected, tokens = snapshot.where(where) if where else None, None
        if holds_objects(embeddings):
            tokens, embeddings = embeddings, pooled(embeddings, cosine=snapshot.info.metric == COSINE)

        def rank(depth: int) -> Sequence[Ranking]:
            if mode == BM25:
                return self._lexical.search(snapshot, questions, depth, selected)
            depth = depth if mode == DENSE and tokens is None else max(depth, FUSED)
            rankings = self._dense(snapshot, embeddings, depth, selected)
            by_words = self._lexical.search(snapshot, questions, depth, selected) if mode == HYBRID else []
            if tokens is not None:
                if mode == HYBRID:
                    rankings = [reciprocal_ranks(both)[:depth] for both in zip(rankings, by_words, strict=True)]
                rankings = _ranked_again(snapshot, tokens, rankings)
            if mode == HYBRID:
                both = zip(rankings, by_words, strict=True)
                rankings = [self.hybrid.fuse(dense, lexical, depth) for dense, lexical in both]
            return rankings

        rankings = snapshot.best_documents(k, rank) if questions else []
        # A document that was deleted since the ranking is omitted.
        documents = snapshot.read_documents({row for ranking in rankings for row, _ in ranking})
        readable = [[(row, score) for row, score in ranking if row in documents] for ranking in rankings]
        return [
            [FoundDocument(rank, score, documents[row]) for rank, (row, score) in enumerate(ranking, start=1)]
            for ranking in readable
        ]

    def add(self, documents: Sequence[Document], embeddings: np.ndarray | None = None, known=None) -> int:
        """Adds documents on disk and in memory; returns the number of older ones with their ids, which they replace.

        Args:
          documents: n texts: documents, or all passages of documents in order.
          embeddings: float32 [n, E]; None: they are computed.
          known: float32 [K, E], of all known questions of the documents, in their order; None: they are computed.

        Raises:
          EndxError: as `Index.add`.
        """
        asked = [question for document in documents for question in document.questions]
        if known is None and asked:
            if self._encode_query is None:
                raise EndxError("there is no model to encode known questions: load one, or give their embeddings")
            known = self._encode_query(asked)
        if embeddings is None:
            if self._encode_document is None:
                raise EndxError("there is no model to encode documents: load one, or give their embeddings")
            embeddings = self._encode_document([document.text for document in documents])
        return self.index.add(documents, embeddings, replace=True, known=known)

    @functools.cached_property
    def _lexical(self) -> Lexical:
        return Lexical()

    def _dense(
        self, snapshot: Snapshot, embeddings: np.ndarray | None, k: int, where: np.ndarray | None
    ) -> Sequence[Ranking]:
        """Returns rows and scores for each question; known questions are compared exactly, whatever the engine."""
        embeddings = np.asarray(embeddings, np.float32)
        if self._engine is None:
            nearest = snapshot.search(embeddings, k, where)
        else:
            nearest = self._engine.search(snapshot, embeddings, k, where)
        rankings = to_rankings(nearest)
        if not snapshot.known or not self.hybrid.known:
            return rankings
        known = snapshot.search_known(embeddings, k, where)
        return [self._raised(*both)[:k] for both in zip(rankings, known, strict=True)]

    def _raised(self, ranking: Ranking, known: Ranking) -> list[tuple[int, float]]:
        """Returns rows by the higher of two scores: the dense one, and the weighted one of known questions."""
        raised = dict(ranking)
        for row, score in known:
            raised[row] = max(raised.get(row, -math.inf), self.hybrid.known * score)
        return sorted(raised.items(), key=lambda pair: (-pair[1], pair[0]))


def _ranked_again(snapshot: Snapshot, questions: np.ndarray, rankings: Sequence[Ranking]) -> list[Ranking]:
    """Ranks documents by MaxSim divided by the question's tokens, as `Hybrid` takes it; those deleted are omitted."""
    again: list[Ranking] = []
    for number, (question, ranking) in enumerate(zip(questions, rankings, strict=True)):
        stored = snapshot.token_vectors([row for row, _ in ranking])
        scores = maxsim_of(question, [*map(dequantize, stored.values())]) / max(1, len(question))
        finite_scores(scores, [(number, row) for row in stored])
        again.append(sorted(zip(stored, scores.tolist(), strict=True), key=lambda pair: -pair[1]))
    return again
