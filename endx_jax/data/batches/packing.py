"""Choice of the packings that a run compiles.

Every packing is a shape that is compiled, so a run uses only a few. They are chosen before the first
step from the lengths of the texts in the first batches, so that little padding is computed.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from endx_jax.batch import Packing
from endx_jax.numerics import round_up

# Maximum packings of a run and buckets of a packing; another one must save at least the share `WORTH` of the cost.
MAX_PROFILES, MAX_BUCKETS, WORTH = 4, 4, 0.02
# Tokens that another packing must save in a run to be worth its compilation: on two CPU cores MiniLM takes 35 s for
# this many tokens, and 10 s to compile.
COMPILATION = 1 << 16
TOKENS, WIDTH = 32, 8  # multiples to which token counts and bucket widths are rounded up
GRID = 128  # number of positions that are considered for cuts between groups

JOINT = "joint"  # name of the texts of all sides as one batch

# Packing of each side of a batch, `question`, `answer` and `hard_negatives` if there are any, and of `JOINT` if asked.
Profile = Mapping[str, Packing]
# Lengths of a batch's texts by side, in tokens: int [B], or [B, K] for hard negatives.
Lengths = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Need:
    """Capacity that one side of a batch needs, as the maximum over shards and chunks.

    Attributes:
      tokens: number of tokens.
      widths: int [n], lengths of the texts in ascending order.
    """

    tokens: int
    widths: np.ndarray

    def fits(self, packing: Packing) -> bool:
        """Returns true if a packing has this capacity."""
        return self.tokens <= packing.tokens and bool((self.widths <= packing.row_widths).all())


@dataclasses.dataclass(frozen=True)
class PackingPlan:
    """Packings of a run.

    Attributes:
      profiles: packings in ascending order; the last one fits every possible batch.
      shards: number of parts of a batch over devices, which are packed separately.
      chunks: number of chunks of each shard, which are packed separately: see `deal`.
      overhead: capacity in tokens divided by real tokens, over the planned batches.
    """

    profiles: Sequence[Profile]
    shards: int
    chunks: int
    overhead: float

    @classmethod
    def from_batches(
        cls,
        batches: Sequence[Lengths],
        limits: Mapping[str, int],
        *,
        shards: int,
        chunks: int,
        steps: int,
        most: int = MAX_PROFILES,
    ) -> "PackingPlan":
        """Chooses packings for these batches, and adds one that fits every other batch.

        Args:
          batches: lengths of the texts in all batches of a run, or in the first ones.
          limits: maximum length of a text of each side, in tokens; with `JOINT` among them, the texts of all sides have
            a packing together, too, which is what is computed.
          shards: number of parts of a batch over devices.
          chunks: number of chunks of each shard.
          steps: number of steps of the run.
          most: maximum number of packings for these batches.
        """
        needs = [needs_of(batch, shards, chunks) for batch in batches]
        computed = {JOINT} & limits.keys() or limits.keys()
        tokens = np.asarray([sum(need[side].tokens for side in computed) for need in needs])
        order = np.argsort(tokens, kind="stable")
        totals = tokens[order]
        profiles: list[Profile] = []
        start, capacity = 0, 0
        worth = COMPILATION / chunks * len(batches) / steps
        for count in partition(totals, most, lambda tokens: tokens, worth):
            group = [needs[n] for n in order[start : start + count]]
            profile = {side: _packing([need[side] for need in group], limits[side]) for side in limits}
            if profile not in profiles:
                profiles.append(profile)
            start += count
            capacity += count * shards * chunks * sum(profile[side].tokens for side in computed)
        sizes = {side: len(need.widths) for side, need in needs[0].items()}
        largest = {side: Packing(sizes[side] * limits[side], ((sizes[side], limits[side]),)) for side in limits}
        real = sum(int(lengths.sum()) for batch in batches for lengths in batch.values())
        return cls((*profiles, largest), shards, chunks, capacity / real)

    def choose(self, lengths: Lengths) -> Profile:
        """Returns the first profile that fits a batch."""
        need = needs_of(lengths, self.shards, self.chunks)
        return next(p for p in self.profiles if all(need[side].fits(p[side]) for side in p))


def needs_of(lengths: Lengths, shards: int, chunks: int) -> dict[str, Need]:
    """Returns the capacity that each side of a batch needs, and `JOINT`."""
    joint = np.concatenate([x.reshape(len(x), -1) for x in lengths.values()], axis=1)
    dealt = deal(joint.sum(axis=1).reshape(shards, -1), chunks)  # [shards, chunks, n]
    needs = {}
    for side, of_side in {**lengths, JOINT: joint}.items():
        of_shards = of_side.reshape(shards, len(of_side) // shards, -1)
        parts = np.stack([rows[indices].reshape(chunks, -1) for rows, indices in zip(of_shards, dealt, strict=True)])
        needs[side] = Need(int(parts.sum(-1).max()), np.sort(parts, axis=-1).max((0, 1)))
    return needs


def deal(costs: np.ndarray, chunks: int) -> np.ndarray:
    """Distributes rows round-robin over chunks by ascending cost, as `Execution.map_rows` does.

    Args:
      costs: int [..., R], cost of each row.
      chunks: number of chunks; if it does not divide R, the cheapest row is repeated.

    Returns:
      int [..., chunks, ceil(R / chunks)], rows of each chunk.
    """
    order = np.argsort(costs, axis=-1, kind="stable")
    size = -(-costs.shape[-1] // chunks)
    missing = chunks * size - costs.shape[-1]
    order = np.concatenate([order, np.repeat(order[..., :1], missing, axis=-1)], axis=-1)
    return np.swapaxes(order.reshape(*costs.shape[:-1], size, chunks), -1, -2)


def partition(values: np.ndarray, most: int, cost: Callable[[np.ndarray], np.ndarray], worth: float = 0.0) -> list[int]:
    """Splits ascending values into groups of minimal total cost; each member costs as much as its group's largest.

    Args:
      values: int [n], ascending.
      most: maximum number of groups. A further group must save at least the share `WORTH` of the cost.
      cost: elementwise increasing function of values.
      worth: cost that a further group must save at least.

    Returns:
      The number of values in each group.
    """
    ends = np.unique(np.linspace(0, len(values), min(len(values), GRID) + 1).astype(int))
    each = cost(np.asarray(values, float)[ends[1:] - 1])
    # best[j]: least cost of the values before ends[j] in len(starts) groups.
    best = np.full(len(ends), np.inf)
    starts: list[np.ndarray] = []
    best[0] = 0.0
    for _ in range(most):
        total = best[:, None] + (ends[None, 1:] - ends[:, None]) * each[None]
        total[np.arange(len(ends))[:, None] >= np.arange(1, len(ends))[None]] = np.inf
        costs = np.concatenate([[np.inf], total.min(0)])
        if starts and best[-1] - costs[-1] <= max(WORTH * best[-1], worth):
            break
        starts.append(np.concatenate([[0], total.argmin(0)]))
        best = costs
    groups, end = [], len(ends) - 1
    for start in reversed(starts):
        groups.append(int(ends[end] - ends[start[end]]))
        end = start[end]
    return groups[::-1]


def _packing(needs: Sequence[Need], limit: int) -> Packing:
    """Returns a packing that fits all needs."""
    widths = np.max([need.widths for need in needs], axis=0)
    widths = np.minimum(round_up(widths, WIDTH), limit)
    buckets, start = [], 0
    # The cost of attention in a bucket has a term in the square of the width and one in the width.
    for count in partition(widths, MAX_BUCKETS, lambda width: width * (width + 64)):
        buckets.append((count, int(widths[start + count - 1])))
        start += count
    tokens = round_up(max(need.tokens for need in needs), TOKENS)
    return Packing(min(tokens, sum(count * width for count, width in buckets)), tuple(buckets))
