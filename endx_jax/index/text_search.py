"""Ranking of the passages of an index for texts: dense, by BM25, or both fused."""

from collections.abc import Callable, Sequence

import numpy as np

from endx_jax.data.batches.ragged import RaggedVectors
from endx_jax.index.approximate import EXACT, Faiss
from endx_jax.index.index_file import COSINE
from endx_jax.index.lexical import Lexical
from endx_jax.index.snapshot import Snapshot
from endx_jax.inference.maxsim import maxsim_of, pooled
from endx_jax.ranking.hybrid import FUSED, Hybrid, Ranking, reciprocal_ranks
from endx_jax.ranking.rerank import finite_scores
from endx_jax.ranking.search import TOGETHER, Neighbours, best_of_groups
from endx_jax.settings import require

DENSE, BM25, HYBRID = MODES = ("dense", "bm25", "hybrid")


class TextRanker:
    """Ranks the passages of snapshots of one index. Threads may share it."""

    def __init__(self, engine: str):
        """Takes `exact` or a name in `approximate.ENGINES`; nothing is built before it is needed."""
        self._engine: Callable[..., Neighbours] = _exact if engine == EXACT else Faiss(engine).search
        self._lexical = Lexical()

    def rank(
        self,
        snapshot: Snapshot,
        questions: Sequence[str],
        k: int,
        *,
        embeddings: np.ndarray | RaggedVectors | None,
        hybrid: Hybrid,
        mode: str,
        where: np.ndarray | None,
    ) -> Sequence[Ranking]:
        """Returns rows and scores of the best k documents of each question, as their best passages.

        Arguments are those of `Index.search`, with the rows to search, bool [rows], in place of the filter.
        """
        tokens = embeddings if isinstance(embeddings, RaggedVectors) else None
        dense, width = pooled(embeddings, cosine=snapshot.info.metric == COSINE), snapshot.info.width
        fits = dense is None or dense.shape[1:] == (width,)
        require(fits, f"embeddings have shape {np.shape(dense)}: the index takes [{len(questions)}, {width}]")

        def rank(depth: int) -> Sequence[Ranking]:
            if mode == BM25:
                return self._lexical.rank(snapshot, questions, depth, where)
            depth = depth if mode == DENSE and tokens is None else max(depth, FUSED)
            rankings: Sequence[Ranking] = self._dense(snapshot, dense, depth, where, hybrid.known)
            by_words = self._lexical.rank(snapshot, questions, depth, where) if mode == HYBRID else []
            if tokens is not None:
                if mode == HYBRID:
                    rankings = [reciprocal_ranks(both)[:depth] for both in zip(rankings, by_words, strict=True)]
                rankings = _ranked_again(snapshot, tokens, rankings)
            if mode == HYBRID:
                rankings = [hybrid.fuse(*both, depth) for both in zip(rankings, by_words, strict=True)]
            return rankings

        return _best_documents(snapshot, k, rank) if questions else []

    def _dense(
        self, snapshot: Snapshot, questions: np.ndarray, k: int, where: np.ndarray | None, weight: float
    ) -> list[Ranking]:
        """Ranks rows; a document's first row has at least the score of its best known question times the weight."""
        rankings: list[Ranking] = [*self._engine(snapshot, questions, k, where).rankings()]
        if not snapshot.known or not weight:
            return rankings
        known, scores_of = snapshot.known, snapshot.known.corpus.scores(questions)
        # The first row of each known question's document; any row for a deleted one, whose score is -inf.
        first = np.minimum(np.searchsorted(snapshot.of, known.of), len(snapshot.of) - 1)
        rows, groups = np.unique(first, return_inverse=True)
        for start in range(0, len(questions), TOGETHER):
            block = np.asarray(scores_of(start, min(start + TOGETHER, len(questions))))
            block = best_of_groups(block, groups, len(rows))
            block = block if where is None else np.where(where[rows], block, -np.inf)
            for n, line in enumerate(block, start):
                scores = dict(rankings[n])
                for place in np.argpartition(-line, min(k, len(line)) - 1)[:k].tolist():
                    row, score = int(rows[place]), weight * float(line[place])
                    if score > scores.get(row, -np.inf):
                        scores[row] = score
                rankings[n] = sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))[:k]
        return rankings


def _exact(snapshot: Snapshot, questions: np.ndarray, k: int, where: np.ndarray | None) -> Neighbours:
    return snapshot.corpus.search(questions, k, where)


def _best_documents(snapshot: Snapshot, k: int, rank: Callable[[int], Sequence[Ranking]]) -> Sequence[Ranking]:
    """Returns the k best documents of each ranking, as the rows and scores of their best passages.

    `rank(depth)` returns rankings of the best `depth` rows; the depth grows until each ranking has k documents. Fused
    scores depend on the depth, so each ranking is that of the first depth that is enough for it.
    """
    depth, best = k if len(snapshot) == snapshot.passages else 4 * k, dict[int, Ranking]()
    while True:
        rankings = rank(depth)
        for n, ranking in enumerate(rankings):
            documents = dict[int, tuple[int, float]]()
            for row, score in ranking:
                documents.setdefault(int(snapshot.of[row]), (row, score))
            if len(documents) >= k or len(ranking) < depth or depth >= snapshot.passages:
                best.setdefault(n, [*documents.values()][:k])
        if len(best) == len(rankings):
            return [best[n] for n in range(len(best))]
        depth *= 4


def _ranked_again(snapshot: Snapshot, questions: RaggedVectors, rankings: Sequence[Ranking]) -> list[Ranking]:
    """Ranks passages by MaxSim divided by the question's tokens, as `Hybrid` takes it; those deleted are omitted."""
    again: list[Ranking] = []
    for number, (question, ranking) in enumerate(zip(questions, rankings, strict=True)):
        rows = {int(snapshot.rows[row]): row for row, _ in ranking}
        found = snapshot.store.token_vectors([*rows])
        stored = {rows[row]: vectors for row, vectors in found.items()}
        vectors = RaggedVectors.of([*stored.values()], snapshot.info.width).floats()
        scores = maxsim_of(question, vectors) / max(1, len(question))
        finite_scores(scores, [(number, row) for row in stored])
        again.append(sorted(zip(stored, scores.tolist(), strict=True), key=lambda pair: -pair[1]))
    return again
