"""Order of training examples from one or more sources: a permutation per epoch, optionally in runs of one group."""

import functools
from collections.abc import Sequence

import numpy as np

from endx_jax.errors import EndxError

ROUND = 1000  # number of runs in a round, in which each source has exactly its share


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


class Epochs:
    """Endless sequence of epochs, each in a different order."""

    def __init__(self, groups: np.ndarray | None, count: int, *, run: int, seed: int, source: Sequence[int] = ()):
        """Prepares the order; the arguments are those of `epoch_order`."""
        self._count = count
        order = functools.partial(epoch_order, groups, count, run=run, seed=seed, source=source)
        # Few epochs are in use at a time: a batch may contain parts of two, and threads prefetch batches.
        self._order = functools.lru_cache(maxsize=4)(lambda epoch: order(epoch=epoch))

    def __call__(self, positions: np.ndarray) -> np.ndarray:
        """Returns the examples, int64 [n], at `positions`, int [n] from 0."""
        epochs, within = np.divmod(positions, self._count)
        examples = np.empty(len(positions), np.int64)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            examples[here] = self._order(int(epoch))[within[here]]
        return examples


class Mixed:
    """Endless mixture of sources by weight, each with separate epochs.

    Runs of the sources are shuffled within rounds of `ROUND` runs, in which every source has exactly its share. The
    example at a position is therefore a pure function of seed and position.
    """

    def __init__(
        self,
        members: Sequence[np.ndarray],
        weights: Sequence[float],
        groups: np.ndarray | None,
        *,
        run: int,
        seed: int,
    ):
        """Prepares the order.

        Args:
          members: examples of each source, int.
          weights: weights of the sources; shares are proportional to them.
          groups: int, group of each example that `members` names; not needed with `run` 1.
          run: number of consecutive examples of one group.
          seed: seed of the training run.

        Raises:
          EndxError: a source has no examples, or so little weight that it would never be drawn.
        """
        self._members, self._run, self._seed = members, run, seed
        self._runs = runs_of_round(weights)
        for number, (own, runs) in enumerate(zip(members, self._runs, strict=True)):
            if not len(own) or not runs:
                why = f"its share is below one in {ROUND:,}" if len(own) else "all its pairs are held out"
                name = f"source {number} of data.mixture" if number else "data.path"
                raise EndxError(f"{name} would never be drawn: {why}; leave it out, or change the weights")
        self._epochs = [
            Epochs(None if groups is None else groups[own], len(own), run=run, seed=seed, source=(3, number))
            for number, own in enumerate(members)
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
        for number, (own, epochs) in enumerate(zip(self._members, self._epochs, strict=True)):
            here = source == number
            examples[here] = own[epochs(turn[here] * self._run + within[here])]
        return examples

    def _shuffled(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the source of each run of a round, and its number among the source's runs, both int [ROUND]."""
        source = np.random.default_rng([self._seed, number, 4]).permutation(
            np.repeat(range(len(self._runs)), self._runs)
        )
        turn = np.empty(ROUND, np.int64)
        for own, runs in enumerate(self._runs):
            turn[source == own] = number * runs + np.arange(runs)
        return source, turn


def runs_of_round(weights: Sequence[float]) -> np.ndarray:
    """Returns the number of runs of each source in a round, int64 [S]: proportional, by largest remainders."""
    exact = ROUND * np.asarray(weights, np.float64) / np.sum(weights)
    runs = np.floor(exact).astype(np.int64)
    left = np.argsort(runs - exact, kind="stable")[: ROUND - runs.sum()]
    runs[left] += 1
    return runs
