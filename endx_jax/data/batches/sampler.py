"""Sampler of training batches: the rows of a step, from one or more sources, as a pure function of (seed, step)."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from endx_jax.data.batches.token_tables import Pairs
from endx_jax.errors import EndxError

ROUND = 1000  # number of runs in a round, in which each source has exactly its share
# Maximum number of examples whose permutation is drawn as an array; the places of others are computed one by one.
MOST_DRAWN = 1 << 22
FEISTEL_ROUNDS = 8
# Hard negatives of a question up to which each step draws a number for every one, for all questions of a batch.
MOST_LISTED = 1024
# Pairs between releases of mapped files: each pair maps about 0.5 MB, as the system also maps pages around those read.
RELEASED_PAIRS = 4096


@dataclasses.dataclass(frozen=True)
class Sources:
    """How batches are drawn from several sources.

    Attributes:
      weights: weight of each source.
      temperature: T: the share of a source is proportional to weight x size^(1/T). 0: to weight alone.
      one_at_a_time: true if all pairs of a batch are from one source.
    """

    weights: tuple[float, ...]
    temperature: float = 0.0
    one_at_a_time: bool = False

    def shares(self, sizes: Sequence[int]) -> np.ndarray:
        """Returns numbers, float64 [S], to which the shares of sources of `sizes` pairs are proportional."""
        scaled = np.asarray(sizes, np.float64) ** (1 / self.temperature) if self.temperature else 1.0
        return np.asarray(self.weights, np.float64) * scaled


def epoch_order(
    groups: np.ndarray | None, count: int, *, run: int, seed: int, epoch: int, source: Sequence[int] = ()
) -> np.ndarray:
    """Returns a permutation of the examples that is a pure function of the arguments.

    In-batch negatives from the same article are harder than others, so an epoch can consist of runs of one group: the
    shuffled examples of each group are cut into runs, the remainders of the groups form mixed runs, and all runs are
    shuffled. With `run` 1 this is a random permutation.

    Args:
      groups: int [count], group of each example; not needed with `run` 1.
      count: number of examples.
      run: number of consecutive examples of one group.
      seed: seed of the training run.
      epoch: number of the epoch.
      source: numbers that distinguish the random draws of sources.

    Returns:
      int64 [count].
    """
    draw = np.random.default_rng([seed, epoch, *source])
    order = draw.permutation(count)
    if run <= 1 or groups is None:
        return order
    order = order[np.argsort(groups[order], kind="stable")]
    of_group = groups[order]
    first, end = (np.searchsorted(of_group, of_group, side=side) for side in ("left", "right"))
    left_over = np.arange(count) >= end - (end - first) % run
    order = np.concatenate([order[~left_over], order[left_over]])
    whole = count - count % run
    runs = order[:whole].reshape(-1, run)
    return np.concatenate([draw.permutation(runs).ravel(), order[whole:]])


def permuted(positions: np.ndarray, count: int, key: Sequence[int]) -> np.ndarray:
    """Returns the examples at `positions` of a permutation of [0, count) that is not held in memory.

    A Feistel network permutes all numbers with as many bits as `count - 1`. It is applied again to results outside the
    range (cycle walking: Black and Rogaway 2002, section 4).

    Args:
      positions: int [n], in [0, count).
      count: number of examples, below 2^62.
      key: integers that determine the permutation.
    """
    bits = max(2, int(count - 1).bit_length())
    low = np.uint64(bits // 2)
    masks = np.uint64((1 << (bits - bits // 2)) - 1), np.uint64((1 << (bits // 2)) - 1)
    keys = np.random.default_rng(key).integers(1 << 63, size=FEISTEL_ROUNDS, dtype=np.uint64)
    examples = np.asarray(positions).astype(np.uint64)
    outside = np.ones(examples.shape, bool)
    while outside.any():
        moved = examples[outside]
        halves = [moved >> low, moved & masks[1]]
        for n, round_key in enumerate(keys):
            halves[n % 2] ^= _mixed_bits(halves[1 - n % 2], round_key) & masks[n % 2]
        examples[outside] = halves[0] << low | halves[1]
        outside = examples >= count
    return examples.astype(np.int64)


def _mixed_bits(values: np.ndarray, key: np.uint64) -> np.ndarray:
    """Returns a hash of uint64 values: the finaliser of SplitMix64 (Steele et al. 2014)."""
    values = values + key
    values = (values ^ values >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ values >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return values ^ values >> np.uint64(31)


class Epochs:
    """Endless sequence of epochs, each in a different order."""

    def __init__(self, groups: np.ndarray | None, count: int, *, run: int, seed: int, source: Sequence[int] = ()):
        """Prepares the order; the arguments are those of `epoch_order`."""
        self._count, self._key = count, (seed, *source)
        self._computed = count > MOST_DRAWN and (run <= 1 or groups is None)
        order = functools.partial(epoch_order, groups, count, run=run, seed=seed, source=source)
        # Few epochs are in use at a time: a batch may contain parts of two, and threads prefetch batches.
        self._order = functools.lru_cache(maxsize=4)(lambda epoch: order(epoch=epoch))

    def __call__(self, positions: np.ndarray) -> np.ndarray:
        """Returns the examples, int64 [n], at `positions`, int [n] from 0."""
        epochs, within = np.divmod(positions, self._count)
        examples = np.empty(len(positions), np.int64)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            if self._computed:
                examples[here] = permuted(within[here], self._count, (*self._key, int(epoch), 5))
            else:
                examples[here] = self._order(int(epoch))[within[here]]
        return examples


class Mixed:
    """Endless mixture of sources by weight, each with separate epochs.

    A stretch is a run of consecutive examples of one source. Stretches are shuffled within rounds of `ROUND`, in which
    every source has exactly its share. The example at a position is therefore a pure function of seed and position.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        weights: Sequence[float] | np.ndarray,
        groups: np.ndarray | None,
        *,
        run: int,
        seed: int,
        stretch: int = 0,
    ):
        """Prepares the order.

        Args:
          sizes: number of examples of each source; those of one source are consecutive.
          weights: weights of the sources; shares are proportional to them.
          groups: int, group of each example; not needed with `run` 1.
          run: number of consecutive examples of one group.
          stretch: number of consecutive examples of one source; 0 for `run`.
          seed: seed of the training run.

        Raises:
          EndxError: a source has no examples, or so little weight that it would never be drawn.
        """
        ends = np.cumsum(sizes)
        self._starts, self._run, self._seed = ends - sizes, stretch or run, seed
        self._runs = runs_of_round(weights)
        for number, (size, runs) in enumerate(zip(sizes, self._runs, strict=True)):
            if not size or not runs:
                why = f"its share is below one in {ROUND:,}" if size else "all its pairs are held out"
                name = f"source {number} of data.mixture" if number else "data.path"
                raise EndxError(f"{name} would never be drawn: {why}; leave it out, or change the weights")
        self._epochs = [
            Epochs(None if groups is None else groups[start:end], end - start, run=run, seed=seed, source=(3, number))
            for number, (start, end) in enumerate(zip(self._starts, ends, strict=True))
        ]
        self._round = functools.lru_cache(maxsize=4)(self._shuffled)

    def __call__(self, positions: np.ndarray) -> np.ndarray:
        """Returns the examples, int64 [n], at `positions`, int [n] from 0."""
        runs, within = np.divmod(positions, self._run)
        source, turn = np.empty(len(positions), np.int64), np.empty(len(positions), np.int64)
        for number in np.unique(runs // ROUND):
            here = runs // ROUND == number
            source[here], turn[here] = (column[runs[here] % ROUND] for column in self._round(int(number)))
        examples = np.empty(len(positions), np.int64)
        for number, (start, epochs) in enumerate(zip(self._starts, self._epochs, strict=True)):
            here = source == number
            examples[here] = start + epochs(turn[here] * self._run + within[here])
        return examples

    def _shuffled(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the source of each run of a round, and its number among the source's runs, both int [ROUND]."""
        source = np.random.default_rng([self._seed, number, 4]).permutation(
            np.repeat(range(len(self._runs)), self._runs)
        )
        turn = np.empty(ROUND, np.int64)
        for number_of_source, runs in enumerate(self._runs):
            turn[source == number_of_source] = number * runs + np.arange(runs)
        return source, turn


def runs_of_round(weights: Sequence[float] | np.ndarray) -> np.ndarray:
    """Returns the number of runs of each source in a round, int64 [S]: proportional, by largest remainders."""
    exact = ROUND * np.asarray(weights, np.float64) / np.sum(weights)
    runs = np.floor(exact).astype(np.int64)
    left = np.argsort(runs - exact, kind="stable")[: ROUND - runs.sum()]
    runs[left] += 1
    return runs


@dataclasses.dataclass(frozen=True)
class Drawn:
    """Rows of the tables in the global batch of a step.

    Attributes:
      key: seed and step; a collator may seed further random draws with them.
      question_id: int32 [B], rows of the questions.
      answer_id: int32 [B], rows of the answers.
      hard_id: int32 [B, K], rows of the hard negatives, padded with -1.
    """

    key: tuple[int, int]
    question_id: np.ndarray
    answer_id: np.ndarray
    hard_id: np.ndarray


def sampler_options(settings: Any) -> dict[str, Any]:
    """Returns the arguments of `Sampler`, beside the pairs, by the settings of a run."""
    of_data = {name: getattr(settings.data, name) for name in ("group_size", "hard_negatives", "sources")}
    return {"seed": settings.seed, "global_batch_size": settings.train.global_batch_size, **of_data}


class Sampler:
    """Draws the pairs and hard negatives of each step.

    Each epoch contains every pair once, in a different order. A batch may contain the end of one epoch and the
    beginning of the next. Mixed sets have separate epochs; `Sources` gives their shares.
    """

    def __init__(
        self,
        pairs: Pairs,
        *,
        seed: int,
        global_batch_size: int,
        group_size: int = 1,
        hard_negatives: int = 0,
        sources: Sources | None = None,
    ):
        """Prepares the order; nothing is drawn yet.

        Args:
          pairs: training pairs.
          seed: seed of the order.
          global_batch_size: B, pairs per step over all processes.
          group_size: number of consecutive pairs of one group: see `epoch_order`.
          hard_negatives: K, hard negatives per question.
          sources: how batches are drawn from several mixed sets; None for one set.

        Raises:
          EndxError: there are fewer than B pairs, or the requested groups or hard negatives are missing, or a source
            would never be drawn.
        """
        if len(pairs) < global_batch_size:
            raise EndxError(
                f"a global batch of {global_batch_size} pairs is larger than the training data, {len(pairs)} pairs; "
                + (f"set train.global_batch_size to at most {len(pairs)}, or " if len(pairs) > 1 else "")
                + "use more data"
            )
        if group_size > 1 and pairs.groups is None:
            raise EndxError(
                f"data.group_size is {group_size}, but the training data has no groups, such as articles; set it to 1"
            )
        if hard_negatives and not len(pairs.hard_negatives.values):
            raise EndxError(f"data.hard_negatives is {hard_negatives}, but the training data has none; set it to 0")
        self.pairs, self.global_batch_size = pairs, global_batch_size
        self._seed, self._hard_negatives = seed, hard_negatives
        groups = None if pairs.groups is None else pairs.groups[pairs.index[:, 0]]
        if not pairs.sizes:
            self._order: Epochs | Mixed = Epochs(groups, len(pairs), run=group_size, seed=seed)
        else:
            sources = sources or Sources((1.0,) * len(pairs.sizes))
            sizes = pairs.sizes + (0,) * (len(sources.weights) - len(pairs.sizes))
            stretch = global_batch_size if sources.one_at_a_time else group_size
            self._order = Mixed(sizes, sources.shares(sizes), groups, run=group_size, stretch=stretch, seed=seed)

    def example_ids(self, step: int) -> np.ndarray:
        """Returns the rows of `pairs.index` in the global batch of `step`, int [B]."""
        return self._order(np.arange(step * self.global_batch_size, (step + 1) * self.global_batch_size))

    def __call__(self, step: int) -> Drawn:
        """Returns the rows of the global batch of `step`; periodically releases mapped pages."""
        if step % -(-RELEASED_PAIRS // self.global_batch_size) == 0:
            self.pairs.release()
        question_id, answer_id = self.pairs.index[self.example_ids(step)].T
        return Drawn((self._seed, step), question_id, answer_id, self._draw_hard_negatives(question_id, step))

    def _draw_hard_negatives(self, question_id: np.ndarray, step: int) -> np.ndarray:
        """Returns K hard negatives of each question without repetition, int32 [B, K], padded with -1."""
        if not self._hard_negatives:
            return np.zeros((len(question_id), 0), np.int32)
        listed, draw = self.pairs.hard_negatives, np.random.default_rng([self._seed, step, 1])
        if listed.width > MOST_LISTED:
            drawn = np.full((len(question_id), self._hard_negatives), -1, np.int32)
            for places, row in zip(drawn, map(listed.row, question_id), strict=True):
                count = min(self._hard_negatives, len(row))
                places[:count] = row[draw.choice(len(row), count, replace=False)] if count else []
            return drawn
        negatives = listed[question_id]
        wanted = min(self._hard_negatives, negatives.shape[1])
        lots = draw.random(negatives.shape)
        first = np.argsort(np.where(negatives >= 0, lots, 2.0), axis=1)[:, :wanted]
        drawn = np.take_along_axis(negatives, first, axis=1)
        return np.pad(drawn, ((0, 0), (0, self._hard_negatives - wanted)), constant_values=-1)
