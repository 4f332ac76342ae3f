"""The order in which an epoch passes over its examples: at random, or in runs of one group."""

import numpy as np


def epoch_order(groups: np.ndarray | None, count: int, *, run: int, seed: int, epoch: int) -> np.ndarray:
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

    Returns:
      int64 [count].
    """
    draw = np.random.default_rng([seed, epoch])
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
