"""The order in which training passes over its examples: at random or in runs of one group; of one source or several."""

import functools
from collections.abc import Sequence

import numpy as np

from endx_jax.errors import EndxError

# Of so many runs in a row, each source's share is exact.
ROUND = 1000


def epoch_order(
    groups: np.ndarray | None, count: int, *, run: int, seed: int, epoch: int, source: Sequence[int] = ()
) -> np.ndarray:
    """A permutation of the examples that is a pure function of its arguments.

    In-batch negatives drawn from the same article are harder than those from anywhere, so an epoch can be laid out in
    runs of one group: each group's examples, in random order, are cut into runs; what is left of the groups makes up
    mixed runs; and the runs are shuffled. With `run` 1 that is a plain random permutation.

    Args:
      groups: int [count], the group of each example; not needed with `run` 1.
      count: of examples.
      run: examples that stand together.
      seed: of the training run.
      epoch: its number.
      source: numbers that tell the draws of one source from another's.

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
    """One pass over the examples after another, each in an order of its own, without end."""

    def __init__(self, groups: np.ndarray | None, count: int, *, run: int, seed: int, source: Sequence[int] = ()):
        """As for `epoch_order`."""
        self._count = count
        order = functools.partial(epoch_order, groups, count, run=run, seed=seed, source=source)
        # A batch can reach into the next epoch, and threads run ahead: few epochs are in use at a time.
        self._order = functools.lru_cache(maxsize=4)(lambda epoch: order(epoch=epoch))

    def __call__(self, places: np.ndarray) -> np.ndarray:
        """The examples at `places`, int [n] from 0: int64 [n]."""
        epochs, within = np.divmod(places, self._count)
        found = np.empty(len(places), np.int64)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            found[here] = self._order(int(epoch))[within[here]]
        return found


class Mixed:
    """Several sources, drawn from by weight, each in epochs of its own.

    Runs of the sources are shuffled within rounds of `ROUND` runs, in which every source has its share exactly, so the
    example at a place is a pure function of seed and place, and nothing has to be counted from the beginning.
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
        """Sets the order up.

        Args:
          members: for each source its examples, int.
          weights: of the sources; shares are in proportion to them.
          groups: int, the group of each example, by the numbers in `members`; not needed with `run` 1.
          run: examples that stand together.
          seed: of the training run.

        Raises:
          EndxError: a source has no examples, or so little weight that it would never be drawn.
        """
        self._members, self._run, self._seed = members, run, seed
        self._runs = runs_of_round(weights)
        for number, (own, runs) in enumerate(zip(members, self._runs, strict=True)):
            if not len(own) or not runs:
                why = f"its share is below one in {ROUND:,}" if len(own) else "it has no pair that is not held out"
                name = f"source {number} of data.mixture" if number else "data.path"
                raise EndxError(f"{name} would never be drawn: {why}; leave it out, or change the weights")
        self._epochs = [
            Epochs(None if groups is None else groups[own], len(own), run=run, seed=seed, source=(3, number))
            for number, own in enumerate(members)
        ]
        self._round = functools.lru_cache(maxsize=4)(self._shuffled)

    def __call__(self, places: np.ndarray) -> np.ndarray:
        """The examples at `places`, int [n] from 0: int64 [n]."""
        runs, within = np.divmod(places, self._run)
        source, turn = np.empty(len(places), np.int64), np.empty(len(places), np.int64)
        for number in np.unique(runs // ROUND):
            here = runs // ROUND == number
            source[here], turn[here] = (column[runs[here] % ROUND] for column in self._round(int(number)))
        found = np.empty(len(places), np.int64)
        for number, (own, epochs) in enumerate(zip(self._members, self._epochs, strict=True)):
            here = source == number
            found[here] = own[epochs(turn[here] * self._run + within[here])]
        return found

    def _shuffled(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """For each run of a round its source, and its place among all runs of that source: int [ROUND] each."""
        source = np.random.default_rng([self._seed, number, 4]).permutation(
            np.repeat(range(len(self._runs)), self._runs)
        )
        turn = np.empty(ROUND, np.int64)
        for own, runs in enumerate(self._runs):
            turn[source == own] = number * runs + np.arange(runs)
        return source, turn


def runs_of_round(weights: Sequence[float]) -> np.ndarray:
    """How many of a round's runs each source has: in proportion to the weights, by largest remainders. int64 [S]."""
    exact = ROUND * np.asarray(weights, np.float64) / np.sum(weights)
    runs = np.floor(exact).astype(np.int64)
    left = np.argsort(runs - exact, kind="stable")[: ROUND - runs.sum()]
    runs[left] += 1
    return runs
