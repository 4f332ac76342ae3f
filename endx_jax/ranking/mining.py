"""Hard negatives from the rankings of BM25, of embeddings in memory, of both together, or of an index."""

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tqdm

from endx_jax.data.batches.ragged import RaggedVectors, concatenate
from endx_jax.data.formats.mined import Negative
from endx_jax.data.sets.records import RetrievalSet
from endx_jax.inference.maxsim import maxsim_of
from endx_jax.json_files import as_whole
from endx_jax.models.dual_encoder import SIDES
from endx_jax.ranking import systems
from endx_jax.ranking.bm25 import BM25, highest
from endx_jax.ranking.evaluate import ScoreBlock
from endx_jax.ranking.hybrid import Hybrid
from endx_jax.ranking.rerank import PairScorer, PairScorerFactory, finite_scores, score_lists
from endx_jax.ranking.search import top_k
from endx_jax.ranking.systems import EncodeSide
from endx_jax.settings import require

# Reasons for rejecting a candidate in the window of ranks.
RIGHT, DUPLICATE, NEAR, DOUBTED = REASONS = ("right", "equal text", "margin", "teacher")


@dataclasses.dataclass(frozen=True)
class Margin:
    """Minimum distance of negatives below the lowest score of a question's right candidates; None for none.

    Attributes:
      absolute: distance in the units of the score.
      relative: share of the right candidate's absolute score: with 0.05 a negative has at most 95 % of a positive score
        (TopK-PercPos in NV-Retriever, Moreira et al. 2024).
    """

    absolute: float | None = None
    relative: float | None = None

    def __bool__(self) -> bool:
        return self.absolute is not None or self.relative is not None

    def limit(self, lowest_right: np.ndarray) -> np.ndarray:
        """Returns the highest score of negatives, float64 [Q], given the lowest score of right candidates [Q]."""
        lowest = np.asarray(lowest_right, np.float64)
        limit = np.full(lowest.shape, np.inf)
        if self.absolute is not None:
            limit = np.minimum(limit, lowest - self.absolute)
        if self.relative is not None:
            limit = np.minimum(limit, lowest - np.abs(lowest) * self.relative)
        return limit


@dataclasses.dataclass(frozen=True)
class MiningSettings:
    """Selection of hard negatives from a ranking.

    Attributes:
      negatives: largest number of negatives per question; the best-ranked ones are kept, unless `mine_negatives` gets
        `strata`.
      first_rank: first rank of the window, from 1. Ranks count every candidate, right ones too.
      last_rank: last rank of the window.
      margin: margin below the right candidates, in the scores of the teacher if there is one, else of the ranking.
    """

    negatives: int = 10
    first_rank: int = 1
    last_rank: int = 100
    margin: Margin = Margin()

    def __post_init__(self):
        for name in ("negatives", "first_rank", "last_rank"):
            as_whole(getattr(self, name), name, least=1)
        window = f"ranks {self.first_rank} to {self.last_rank}"
        require(self.first_rank <= self.last_rank, f"{window} are empty: the first must be from 1 to the last")
        for value in filter(None, (self.margin.absolute, self.margin.relative)):
            message = f"a margin of {value} admits negatives that score above the right answers; give one of at least 0"
            require(value > 0, message)


@dataclasses.dataclass(frozen=True, eq=False)
class Ranked:
    """Ranking of candidates for Q questions.

    Attributes:
      rows: int32 [Q, depth], candidates, best first, padded with -1.
      scores: float32 [Q, depth].
      lowest_right: returns float32 [Q], the lowest score of each question's right candidates; called only if a margin
        needs it.
    """

    rows: np.ndarray
    scores: np.ndarray
    lowest_right: Callable[[], np.ndarray]


class Mined(NamedTuple):
    """Result of `mine_negatives`.

    Attributes:
      negatives: negatives of each question, in the order of their ranks.
      dropped: number of rejected candidates of the window, by reason.
    """

    negatives: list[list[Negative]]
    dropped: dict[str, int]


def mine_negatives(
    ranked: Ranked,
    records: RetrievalSet,
    settings: MiningSettings,
    teacher: PairScorer | None = None,
    strata: PairScorer | None = None,
) -> Mined:
    """Selects hard negatives from a ranking of the candidates of a retrieval set.

    Rejected candidates: right ones, and those excluded for the question; those whose text equals that of the question,
    or of a right or a better-ranked one, up to case and white space; and those within the margin. A teacher scores the
    best candidates, and further ones until a question has enough negatives; it rejects at least those that it scores
    above a right one.

    Args:
      ranked: at least `settings.last_rank` deep, or as deep as the pool.
      records: questions, candidates and judgements.
      settings: selection.
      teacher: scores (question, candidate) rows; None: no teacher.
      strata: scores (question, candidate) rows; the negatives of a question are then spread over the order of these
        scores instead of the best-ranked ones: see `_stratified`.
    """
    wanted = settings.last_rank if strata else settings.negatives
    dropped = Counter(dict.fromkeys(REASONS, 0))
    places = _places_left(ranked, records, settings, settings.margin if teacher is None else Margin(), dropped)
    if teacher is None:
        kept = [ranks[:wanted] for ranks in places]
    else:
        limit = (settings.margin or Margin(absolute=0.0)).limit(lowest_right(teacher, records.qrels))
        kept = _first_unrejected(ranked.rows, places, limit, wanted, teacher, dropped)
    if strata:
        kept = _stratified(ranked.rows, kept, settings.negatives, strata)
    negatives = [
        [Negative(int(rows[place]), float(scores[place]), place + 1) for place in ranks]
        for rows, scores, ranks in zip(ranked.rows, ranked.scores, kept, strict=True)
    ]
    return Mined(negatives, dict(dropped))


def score_candidates(
    score: PairScorer, qrels: Sequence[Sequence[int]], negatives: Sequence[Sequence[Negative]]
) -> list[dict[int, float]]:
    """Scores each question's right candidates and negatives, for distillation; returns finite scores by row."""
    listed = [[*right, *(one.row for one in mined)] for right, mined in zip(qrels, negatives, strict=True)]
    scores = zip(listed, score_lists(score, listed), strict=True)
    return [dict(zip(rows, values.tolist(), strict=True)) for rows, values in scores]


def lowest_right(score: PairScorer, qrels: Sequence[Sequence[int]]) -> np.ndarray:
    """Returns the lowest score of each question's right candidates: float32 [Q]."""
    return np.asarray([own.min(initial=np.inf) for own in score_lists(score, qrels)], np.float32)


def _places_left(
    ranked: Ranked, records: RetrievalSet, settings: MiningSettings, margin: Margin, dropped: Counter
) -> list[list[int]]:
    """Returns for each question the positions in its ranking, from 0, of possible negatives."""
    # Hashes of all texts, ignoring case and white space, which take less memory than the texts.
    key, own = (
        [hash(" ".join(text.casefold().split())) for text in texts] for texts in (records.candidates, records.questions)
    )
    limit = margin.limit(ranked.lowest_right()) if margin else np.full(len(own), np.inf)
    left = []
    for question, right in enumerate(records.qrels):
        rejected = {*right, *(records.excluded[question] if records.excluded else ())}
        rows = ranked.rows[question, : settings.last_rank].tolist()
        seen, kept = {own[question], *(key[row] for row in rejected)}, []
        for place in range(settings.first_rank - 1, len(rows)):
            row = rows[place]
            if row < 0:
                break
            if row in rejected:
                dropped[RIGHT] += 1
            elif key[row] in seen:
                dropped[DUPLICATE] += 1
            elif ranked.scores[question, place] > limit[question]:
                dropped[NEAR] += 1
            else:
                kept.append(place)
            seen.add(key[row])
        left.append(kept)
    return left


def _first_unrejected(rows, places, limit, wanted: int, teacher: PairScorer, dropped: Counter) -> list[list[int]]:
    """Returns the first `wanted` positions of each question that the teacher does not score above the limit."""
    kept: list[list[int]] = [[] for _ in places]
    waiting = [iter(ranks) for ranks in places]
    while True:
        pending = [
            (question, place)
            for question, ranks in enumerate(kept)
            for _, place in zip(range(wanted - len(ranks)), waiting[question], strict=False)
        ]
        if not pending:
            return kept
        scores = teacher(np.asarray([(question, rows[question, place]) for question, place in pending], int))
        for (question, place), score in zip(pending, scores.tolist(), strict=True):
            if score > limit[question]:
                dropped[DOUBTED] += 1
            else:
                kept[question].append(place)


def _stratified(rows, places, wanted: int, score: PairScorer) -> list[list[int]]:
    """Returns up to `wanted` positions of each question, in order, spread over all scores."""
    # Stratified sampling of Jang et al. 2026 (arXiv 2604.04734), without chance: the candidates in the order of their
    # scores are divided into `wanted` strata of equal size, and the middle one of each is taken.
    scores = score_lists(score, [own[ranks] for own, ranks in zip(rows, places, strict=True)])
    kept = []
    for ranks, own in zip(places, scores, strict=True):
        count = min(wanted, len(ranks))
        middles = ((np.arange(count) + 0.5) * len(ranks) / max(count, 1)).astype(int)
        kept.append(sorted(ranks[n] for n in np.argsort(-own, kind="stable")[middles].tolist()))
    return kept


# Rows, int [n], to embeddings that hold theirs, float32 [m, E] or `RaggedVectors`, and to their places there, int [n].
Embedded = Callable[[np.ndarray], tuple[Any, np.ndarray]]

# Pairs scored at a time: by inner products, and by MaxSim, which copies the token vectors of each pair's candidate.
PAIRS, PAIRS_BY_TOKEN = 65536, 1024
# Questions whose scores of all candidates are in memory at a time.
BLOCK = 16
# Candidates of a question that a reranker scores.
RERANKED = 100


def rank_by_bm25(records: RetrievalSet, depth: int, *, progress: bool = False) -> Ranked:
    """Ranks the `depth` best by BM25; candidates without a word of the question are not ranked."""
    score_block = BM25.of_texts(records.candidates, records.text_language).score_block(records.questions)
    return _rank_all(score_block, records, depth, above=0.0, progress=progress)


def rank_by_hybrid(
    encode: EncodeSide, hybrid: Hybrid, records: RetrievalSet, depth: int, *, progress: bool = False
) -> Ranked:
    """Ranks the `depth` best by `hybrid`, the sum of dense and BM25 scores; all embeddings are in memory."""
    questions, candidates = encode("question", records.questions), encode("answer", records.candidates)
    lexical = BM25.of_texts(records.candidates, records.text_language).scaled_block(records.questions)
    dense = systems.mean_maxsim(questions, systems.scores_of(questions, candidates))
    return _rank_all(hybrid.score_block(dense, lexical), records, depth, above=-np.inf, progress=progress)


def _rank_all(score_block: ScoreBlock, records: RetrievalSet, depth: int, *, above: float, progress: bool) -> Ranked:
    """Ranks the `depth` best of the candidates that score higher than `above`."""
    rows = np.full((len(records.questions), min(depth, len(records.candidates))), -1, np.int32)
    scores, lowest = np.zeros(rows.shape, np.float32), np.zeros(len(rows), np.float32)
    with tqdm.tqdm(total=len(rows), desc="ranking", unit="question", disable=not progress, leave=False) as shown:
        for start in range(0, len(rows), BLOCK):
            block = np.asarray(score_block(start, min(start + BLOCK, len(rows))))
            for n, own in enumerate(block, start):
                best = highest(own, depth, above)
                rows[n, : len(best)], scores[n, : len(best)] = best, own[best]
                lowest[n] = own[list(records.qrels[n])].min()
            shown.update(len(block))
    return Ranked(rows, scores, lambda: lowest)


def rank_by_embeddings(encode: EncodeSide, records: RetrievalSet, depth: int) -> Ranked:
    """Ranks the `depth` best by inner product, exactly; all embeddings are in memory."""
    questions, candidates = encode("question", records.questions), encode("answer", records.candidates)
    nearest = top_k(questions, candidates, depth)
    score = Similarities(encoded(questions), encoded(candidates))
    return Ranked(nearest.rows, nearest.scores, lambda: lowest_right(score, records.qrels))


def rank_by_pairs(scores_of: PairScorerFactory, records: RetrievalSet, depth: int) -> Ranked:
    """Ranks the `depth` best of BM25's best candidates, at least `RERANKED`; with embeddings, of all candidates."""
    if isinstance(scores_of, SimilaritiesOfTexts) and not scores_of.by_token:
        return rank_by_embeddings(scores_of.encode, records, depth)
    first = rank_by_bm25(records, max(depth, RERANKED))
    score, found = scores_of(records.questions, records.candidates), first.rows >= 0
    scores = np.full(found.shape, -np.inf, np.float32)
    scores[found] = score(np.stack([np.nonzero(found)[0], first.rows[found]], axis=1))
    best = np.argsort(-scores, axis=1, kind="stable")[:, :depth]
    rows, scores = (np.take_along_axis(values, best, axis=1) for values in (first.rows, scores))
    return Ranked(rows, scores, lambda: lowest_right(score, records.qrels))


class Similarities:
    """Scores of (question, candidate) pairs by their embeddings: inner products, or MaxSim of token vectors."""

    def __init__(self, questions: Embedded, candidates: Embedded):
        """Takes functions from rows to embeddings, for both sides."""
        self._questions, self._candidates = questions, candidates

    def __call__(self, pairs: np.ndarray) -> np.ndarray:
        """Scores pairs int [n, 2]; returns float32 [n]."""
        scores = np.empty(len(pairs), np.float32)
        for start in range(0, len(pairs), PAIRS):
            question, candidate = pairs[start : start + PAIRS].T
            (asked, of_question), (texts, of_candidate) = self._questions(question), self._candidates(candidate)
            if not isinstance(asked, RaggedVectors):
                scores[start : start + PAIRS] = np.einsum("ne,ne->n", asked[of_question], texts[of_candidate])
                continue
            order = np.argsort(question, kind="stable")
            firsts = np.flatnonzero(np.diff(question[order])) + 1  # of each question after the first one
            ends = np.union1d(firsts, np.arange(PAIRS_BY_TOKEN, len(order), PAIRS_BY_TOKEN))
            for own in np.split(order, ends):
                scores[start + own] = maxsim_of(asked[of_question[own[0]]], texts[of_candidate[own]])
        return finite_scores(scores, pairs)


def encoded(embeddings: Any) -> Embedded:
    """Returns the function from rows to embeddings for `Similarities`, of texts that are all encoded."""
    return lambda rows: (embeddings, rows)


@dataclasses.dataclass(frozen=True)
class SimilaritiesOfTexts:
    """Pair scorers of a model that encodes each text on first use; by MaxSim if it embeds texts `by_token`."""

    encode: EncodeSide
    by_token: bool = False
    processors: Mapping[str, Callable] | None = None  # of the texts of each side, to count tokens

    def __call__(self, questions: Sequence[str], candidates: Sequence[str]) -> Similarities:
        """Returns the scorer of pairs of rows of the texts."""
        sides = zip(SIDES, (questions, candidates), strict=True)
        return Similarities(*(EncodedOnDemand(functools.partial(self.encode, side), texts) for side, texts in sides))


class EncodedOnDemand:
    """Embeddings of texts, computed on first use."""

    def __init__(self, encode: Callable[[Sequence[str]], np.ndarray], texts: Sequence[str]):
        self._encode, self._texts = encode, texts
        self._place = np.full(len(texts), -1)
        self._embeddings: Any = np.zeros((0, 0), np.float32)

    def __call__(self, rows: np.ndarray) -> tuple[Any, np.ndarray]:
        """Returns all embeddings so far, and the places of rows, int [n], among them."""
        fresh = np.unique(rows[self._place[rows] < 0])
        if len(fresh):
            made, known = self._encode([self._texts[row] for row in fresh.tolist()]), len(self._embeddings)
            self._place[fresh] = np.arange(known, known + len(fresh))
            self._embeddings = concatenate([self._embeddings, made]) if known else made
        return self._embeddings, self._place[rows]
