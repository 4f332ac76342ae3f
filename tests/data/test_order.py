import numpy as np
import pytest

from endx_jax.data.order import epoch_order

# Groups of 7, 5, 4 and 1, mixed up.
GROUPS = np.random.default_rng(0).permutation(np.repeat([0, 1, 2, 3], [7, 5, 4, 1]))


def order(groups=GROUPS, run=3, seed=0, epoch=0):
    return epoch_order(groups, len(groups), run=run, seed=seed, epoch=epoch)


@pytest.mark.parametrize("run", [1, 2, 3, 4, 17, 40])
def test_every_example_comes_once(run):
    np.testing.assert_array_equal(np.sort(order(run=run)), np.arange(17))


def test_runs_are_of_one_group_as_far_as_the_groups_go():
    # Runs of 3: two of group 0, one each of groups 1 and 2; 1 + 2 + 1 + 1 are left over: one mixed run and 2 examples.
    runs = GROUPS[order()[:15]].reshape(5, 3)
    pure = [run[0] for run in runs if len(set(run)) == 1]
    assert sorted(pure) == [0, 0, 1, 2]


def test_epochs_and_seeds_have_orders_of_their_own():
    assert not np.array_equal(order(epoch=0), order(epoch=1))
    assert not np.array_equal(order(seed=0), order(seed=1))
    np.testing.assert_array_equal(order(epoch=3), order(epoch=3))


def test_who_stands_together_changes_from_epoch_to_epoch():
    groups = np.zeros(64, int)
    together = [{frozenset(run) for run in order(groups, run=4, epoch=epoch).reshape(-1, 4)} for epoch in range(2)]
    assert together[0].isdisjoint(together[1])


def test_without_groups_or_with_runs_of_one_it_is_a_random_order():
    first = [epoch_order(None, 1000, run=1, seed=0, epoch=epoch)[0] for epoch in range(200)]
    # Uniform on 0..999: mean 499.5, standard deviation of the mean of 200 about 20.
    assert abs(np.mean(first) - 499.5) < 80
    np.testing.assert_array_equal(order(run=1), epoch_order(None, 17, run=1, seed=0, epoch=0))
