"""One ranking of several: by places alone, or by scores brought to one scale."""

from collections.abc import Sequence

Ranking = Sequence[tuple[int, float]]

# Cormack et al. 2009 chose it on pilot runs; results hardly depend on it.
RRF_K = 60


def reciprocal_ranks(rankings: Sequence[Ranking], k: int = RRF_K) -> list[tuple[int, float]]:
    """Reciprocal rank fusion (Cormack, Clarke and Buettcher 2009).

    The score of an item is

        sum over the rankings that hold it of 1 / (k + r),

    with r its place there, from 1. Scores of the rankings are not looked at, so they need not be comparable.

    Args:
      rankings: pairs of item and score, best first; an item at most once in each.
      k: how little the first places stand out.

    Returns:
      Pairs of item and fused score, best first. Of equal ones the one that an earlier ranking holds comes first, and in
      one ranking the better.
    """
    fused: dict[int, float] = {}
    for ranking in rankings:
        for place, (item, _) in enumerate(ranking, start=1):
            fused[item] = fused.get(item, 0.0) + 1 / (k + place)
    return _ordered(fused)


def weighted_scores(rankings: Sequence[Ranking], weights: Sequence[float]) -> list[tuple[int, float]]:
    """A convex combination of scores that are brought to [0, 1] (Bruch, Gai and Ingber 2023).

    The score of an item is

        sum over rankings i of weights[i] * (score_i - lowest_i) / (highest_i - lowest_i),

    with the lowest and highest score of ranking i. A ranking that does not hold the item adds 0, as for its last one;
    one whose scores are all equal adds its whole weight.

    Args:
      rankings: pairs of item and score, best first; an item at most once in each.
      weights: of each ranking, such as `(w, 1 - w)`.

    Returns:
      As `reciprocal_ranks`.
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
