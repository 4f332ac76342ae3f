"""Which few packings a run needs: shapes are compiled, so batches may not each have their own.

All lengths are known before the first step, so the packings are chosen by what the run's batches need: few enough to
compile, close enough to what each needs that little is computed in vain.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from endx_jax.batch import Packing
from endx_jax.numerics import round_up

# Packings of a run, and buckets of a packing, at most; one more has to spare this share of the cost.
MOST_PROFILES, MOST_BUCKETS, WORTH = 4, 4, 0.02
# And one more packing has to spare a run so many tokens, since it has to be compiled: on two CPU cores MiniLM takes
# 35 s for them, and 10 s to compile.
COMPILATION = 1 << 16
# Room is made for multiples of so many tokens; buckets' widths are multiples of so many.
TOKENS, WIDTH = 32, 8
# Cuts are looked for on a grid of so many places.
GRID = 128

# The packing of each side of a batch: `question`, `answer`, and `hard_negatives` where there are any.
Profile = Mapping[str, Packing]
# The lengths of a batch's texts, by side, in tokens: int [B], or [B, K] of hard negatives.
Lengths = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Need:
    """What one side of a batch needs room for, in the shard and chunk that needs most.

    Attributes:
      tokens: of all texts together.
      widths: int [n], of each text in order of length.
    """

    tokens: int
    widths: np.ndarray

    def fits(self, packing: Packing) -> bool:
        """Whether a packing has that room."""
        return self.tokens <= packing.tokens and bool((self.widths <= packing.row_widths).all())


@dataclasses.dataclass(frozen=True)
class PackingPlan:
    """The packings of a run.

    Attributes:
      profiles: from the smallest to one that has room for everything.
      shards: parts that a batch is split into over devices, each packed by itself.
      chunks: parts that each shard's rows are dealt to, each packed by itself: see `dealt`.
      overhead: tokens that there is room for, over real tokens, in the batches that were planned for.
    """

    profiles: Sequence[Profile]
    shards: int
    chunks: int
    overhead: float

    @classmethod
    def of(
        cls, batches: Sequence[Lengths], limits: Mapping[str, int], *, shards: int, chunks: int, steps: int
    ) -> "PackingPlan":
        """Plans for these batches, and makes sure of all others.

        Args:
          batches: the lengths of a run's batches, of all or of the first ones.
          limits: the longest that a text of each side may be.
          shards: see above.
          chunks: see above.
          steps: of the run.
        """
        needs = [needs_of(batch, shards, chunks) for batch in batches]
        order = sorted(range(len(needs)), key=lambda n: sum(need.tokens for need in needs[n].values()))
        totals = np.asarray([sum(need.tokens for need in needs[n].values()) for n in order])
        profiles: list[Profile] = []
        start, room = 0, 0
        worth = COMPILATION / chunks * len(batches) / steps
        for count in cut(totals, MOST_PROFILES, lambda tokens: tokens, worth):
            group = [needs[n] for n in order[start : start + count]]
            profile = {side: _packing([need[side] for need in group], limits[side]) for side in limits}
            if profile not in profiles:
                profiles.append(profile)
            start += count
            room += count * shards * chunks * sum(packing.tokens for packing in profile.values())
        sizes = {side: len(need.widths) for side, need in needs[0].items()}
        anything = {side: Packing(sizes[side] * limits[side], ((sizes[side], limits[side]),)) for side in limits}
        real = sum(int(lengths.sum()) for batch in batches for lengths in batch.values())
        return cls((*profiles, anything), shards, chunks, room / real)

    def choose(self, lengths: Lengths) -> Profile:
        """The first profile that has room for a batch."""
        need = needs_of(lengths, self.shards, self.chunks)
        return next(p for p in self.profiles if all(need[side].fits(p[side]) for side in p))


def needs_of(lengths: Lengths, shards: int, chunks: int) -> dict[str, Need]:
    """What each side of a batch needs."""
    total = sum(x.reshape(len(x), -1).sum(1) for x in lengths.values())
    places = dealt(total.reshape(shards, -1), chunks)  # [shards, chunks, n]
    needs = {}
    for side, own in lengths.items():
        own = own.reshape(shards, len(own) // shards, -1)
        parts = np.stack([rows[place].reshape(chunks, -1) for rows, place in zip(own, places, strict=True)])
        needs[side] = Need(int(parts.sum(-1).max()), np.sort(parts, axis=-1).max((0, 1)))
    return needs


def dealt(costs: np.ndarray, chunks: int) -> np.ndarray:
    """Deals rows to chunks in order of cost, in turn, so that the chunks are alike: as `Execution.map_rows` does.

    Args:
      costs: int [..., R].
      chunks: how many; where they do not divide the rows, the cheapest row fills up.

    Returns:
      int [..., chunks, ceil(R / chunks)], the rows of each chunk.
    """
    order = np.argsort(costs, axis=-1, kind="stable")
    size = -(-costs.shape[-1] // chunks)
    missing = chunks * size - costs.shape[-1]
    order = np.concatenate([order, np.repeat(order[..., :1], missing, axis=-1)], axis=-1)
    return np.swapaxes(order.reshape(*costs.shape[:-1], size, chunks), -1, -2)


def cut(values: np.ndarray, most: int, cost: Callable[[np.ndarray], np.ndarray], worth: float = 0.0) -> list[int]:
    """Cuts ascending values into groups, each of which costs its largest value's cost for every member.

    Args:
      values: int [n], ascending.
      most: groups at most; fewer where another would spare less than `WORTH` of the whole.
      cost: of values, elementwise and rising.
      worth: what another has to spare besides.

    Returns:
      How many values each group has.
    """
    ends = np.unique(np.linspace(0, len(values), min(len(values), GRID) + 1).astype(int))
    each = cost(np.asarray(values, float)[ends[1:] - 1])
    # best[j]: the least cost of what lies before ends[j], in as many groups as there are rows in `starts`.
    best = np.full(len(ends), np.inf)
    starts: list[np.ndarray] = []
    best[0] = 0.0
    for _ in range(most):
        total = best[:, None] + (ends[None, 1:] - ends[:, None]) * each[None]
        total[np.arange(len(ends))[:, None] >= np.arange(1, len(ends))[None]] = np.inf
        found = np.concatenate([[np.inf], total.min(0)])
        if starts and best[-1] - found[-1] <= max(WORTH * best[-1], worth):
            break
        starts.append(np.concatenate([[0], total.argmin(0)]))
        best = found
    groups, end = [], len(ends) - 1
    for start in reversed(starts):
        groups.append(int(ends[end] - ends[start[end]]))
        end = start[end]
    return groups[::-1]


def _packing(needs: Sequence[Need], limit: int) -> Packing:
    """One packing with room for all of these."""
    widths = np.max([need.widths for need in needs], axis=0)
    widths = np.minimum(round_up(widths, WIDTH), limit)
    buckets, start = [], 0
    # What is done in buckets grows with the square of the width, and where it is small, with the width.
    for count in cut(widths, MOST_BUCKETS, lambda width: width * (width + 64)):
        buckets.append((count, int(widths[start + count - 1])))
        start += count
    tokens = round_up(max(need.tokens for need in needs), TOKENS)
    return Packing(min(tokens, sum(count * width for count, width in buckets)), tuple(buckets))
