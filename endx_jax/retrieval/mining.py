"""Hard negatives out of a ranking: near the top, and as far as one can tell not right."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from endx_jax.data.mined import Negative
from endx_jax.retrieval.pair_scores import ScorePairs
from endx_jax.settings import check

# Why a candidate in the window of ranks was no negative.
RIGHT, DUPLICATE, NEAR, DOUBTED = REASONS = ("right", "equal text", "margin", "teacher")


@dataclasses.dataclass(frozen=True)
class Margin:
    """How far below all of a question's right candidates a negative must score; None asks for nothing.

    Attributes:
      absolute: in the units of the score.
      relative: as a share of the right candidate's score: with 0.05 a negative has at most 95 % of it (NV-Retriever,
        Moreira et al. 2024, calls that TopK-PercPos). Of a score below zero it is the same share of its size.
    """

    absolute: float | None = None
    relative: float | None = None

    def __bool__(self) -> bool:
        return self.absolute is not None or self.relative is not None

    def limit(self, lowest_right: np.ndarray) -> np.ndarray:
        """The highest score that a negative may have, given the lowest of a right candidate: float64 [Q] of [Q]."""
        lowest = np.asarray(lowest_right, np.float64)
        limit = np.full(lowest.shape, np.inf)
        if self.absolute is not None:
            limit = np.minimum(limit, lowest - self.absolute)
        if self.relative is not None:
            limit = np.minimum(limit, lowest - np.abs(lowest) * self.relative)
        return limit


@dataclasses.dataclass(frozen=True)
class MiningSettings:
    """Which candidates of a ranking become hard negatives.

    Attributes:
      negatives: kept for a question, at most: those with the best ranks.
      first_rank: of the window that they come from. Ranks count every candidate, right ones too.
      last_rank: of the window.
      margin: below the right candidates, by the score that ranks.
      teacher_margin: likewise by a teacher's score, where there is a teacher.
    """

    negatives: int = 10
    first_rank: int = 1
    last_rank: int = 100
    margin: Margin = Margin()
    teacher_margin: Margin = Margin(absolute=0.0)

    def __post_init__(self):
        check(self.negatives >= 1, f"{self.negatives} negatives a question: keep at least 1")
        window = f"ranks {self.first_rank} to {self.last_rank}"
        check(1 <= self.first_rank <= self.last_rank, f"{window} hold nothing: give the first, from 1, and the last")
        for margin in (self.margin, self.teacher_margin):
            for value in filter(None, (margin.absolute, margin.relative)):
                check(value > 0, f"a margin of {value} lets in what scores above the right answers; give one from 0 on")


@dataclasses.dataclass(frozen=True, eq=False)
class Ranked:
    """What a system finds for Q questions.

    Attributes:
      rows: int32 [Q, depth], candidates, best first; -1 behind the last where there are fewer.
      scores: float32 [Q, depth].
      lowest_right: gives float32 [Q], the lowest score of each question's right candidates; called where a margin
        needs it.
    """

    rows: np.ndarray
    scores: np.ndarray
    lowest_right: Callable[[], np.ndarray]


class Mined(NamedTuple):
    """What `mine` returns.

    Attributes:
      negatives: for each question, in the order of their ranks.
      dropped: how many candidates of the window were left out, by reason; `teacher` counts those that were asked about.
    """

    negatives: list[list[Negative]]
    dropped: dict[str, int]


def mine(
    ranked: Ranked,
    qrels: Sequence[Sequence[int]],
    candidates: Sequence[str],
    settings: MiningSettings,
    teacher: ScorePairs | None = None,
) -> Mined:
    """Takes hard negatives from a ranking.

    From the window of ranks these are left out: right candidates; candidates whose text is that of a right one, or of
    one with a better rank, but for case and white space; and those within the margin. A teacher is asked about the
    best of the others, and about further ones until a question has as many as are wanted.

    Args:
      ranked: at least `settings.last_rank` deep, or as deep as the pool.
      qrels: for each question the rows of its right candidates.
      candidates: N texts.
      settings: what to keep.
      teacher: scores of (question, candidate) rows; None: nobody is asked.
    """
    dropped = Counter(dict.fromkeys(REASONS, 0))
    places = _places_left(ranked, qrels, candidates, settings, dropped)
    if teacher is None:
        kept = [own[: settings.negatives] for own in places]
    else:
        limit = settings.teacher_margin.limit(lowest_right(teacher, qrels))
        kept = _confirmed(ranked.rows, places, limit, settings.negatives, teacher, dropped)
    negatives = [
        [Negative(int(rows[place]), float(scores[place]), place + 1) for place in own]
        for rows, scores, own in zip(ranked.rows, ranked.scores, kept, strict=True)
    ]
    return Mined(negatives, dict(dropped))


def lowest_right(score: ScorePairs, qrels: Sequence[Sequence[int]]) -> np.ndarray:
    """The lowest score of each question's right candidates: float32 [Q]."""
    pairs = np.asarray([(question, row) for question, right in enumerate(qrels) for row in right], int).reshape(-1, 2)
    lowest = np.full(len(qrels), np.inf, np.float32)
    np.minimum.at(lowest, pairs[:, 0], score(pairs))
    return lowest


def _places_left(ranked, qrels, candidates, settings: MiningSettings, dropped: Counter) -> list[list[int]]:
    """For each question the places of its ranking, from 0, that may hold negatives."""
    key = _text_keys(candidates)
    margin = settings.margin
    limit = margin.limit(ranked.lowest_right()) if margin else np.full(len(qrels), np.inf)
    left = []
    for question, right in enumerate(qrels):
        rows = ranked.rows[question, : settings.last_rank].tolist()
        known, seen, own = set(right), {key[row] for row in right}, []
        for place in range(settings.first_rank - 1, len(rows)):
            row = rows[place]
            if row < 0:
                break
            if row in known:
                dropped[RIGHT] += 1
            elif key[row] in seen:
                dropped[DUPLICATE] += 1
            elif ranked.scores[question, place] > limit[question]:
                dropped[NEAR] += 1
            else:
                own.append(place)
            seen.add(key[row])
        left.append(own)
    return left


def _confirmed(rows, places, limit, wanted: int, teacher: ScorePairs, dropped: Counter) -> list[list[int]]:
    """The first `wanted` places of each question that the teacher does not score above the limit."""
    kept: list[list[int]] = [[] for _ in places]
    waiting = [iter(own) for own in places]
    while True:
        asked = [
            (question, place)
            for question, own in enumerate(kept)
            for _, place in zip(range(wanted - len(own)), waiting[question], strict=False)
        ]
        if not asked:
            return kept
        scores = teacher(np.asarray([(question, rows[question, place]) for question, place in asked], int))
        for (question, place), score in zip(asked, scores.tolist(), strict=True):
            if score > limit[question]:
                dropped[DOUBTED] += 1
            else:
                kept[question].append(place)


def _text_keys(candidates: Sequence[str]) -> list[int]:
    """A number for each text, equal where texts are but for case and white space."""
    numbers: dict[str, int] = {}
    return [numbers.setdefault(" ".join(text.casefold().split()), len(numbers)) for text in candidates]
