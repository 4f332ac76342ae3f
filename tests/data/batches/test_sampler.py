import tracemalloc

import numpy as np
import pytest
from refusals import check_refusal

from endx_jax.data.batches.ragged import Ragged
from endx_jax.data.batches.sampler import ROUND, Epochs, Mixed, Sampler, Sources, epoch_order, permuted, runs_of_round
from endx_jax.data.batches.token_tables import Pairs

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
    groups = np.zeros(64, int)
    together = [{frozenset(run) for run in order(groups, run=4, epoch=epoch).reshape(-1, 4)} for epoch in range(2)]
    assert together[0].isdisjoint(together[1])


# Sources of 5 and 12 examples, drawn from three to one.
SIZES = (5, 12)


def mixed(weights=(3, 1), run=1, seed=0, groups=None):
    return Mixed(SIZES, weights, groups, run=run, seed=seed)


def test_every_source_has_its_share_and_goes_through_its_own_epochs():
    drawn = mixed()(np.arange(2 * ROUND))
    for part in (drawn[:ROUND], drawn[ROUND:]):
        assert (part < 5).sum() == 0.75 * ROUND
    small, large = drawn[drawn < 5].reshape(300, 5), drawn[drawn >= 5]
    np.testing.assert_array_equal(np.sort(small, axis=1), np.tile(np.arange(5), (300, 1)))
    np.testing.assert_array_equal(np.sort(large[: 41 * 12].reshape(41, 12), axis=1), np.tile(np.arange(5, 17), (41, 1)))
    assert len(set(large[41 * 12 :])) == 8
    assert len({tuple(epoch) for epoch in small}) > 90  # 300 of 120 orders at random: 110 are expected
    # Two sources of 2,000 examples, drawn in equal parts: 4,000 places are one epoch of each, in four rounds.
    drawn = Mixed((2000, 2000), (1, 1), None, run=1, seed=0)(np.arange(4000))
    np.testing.assert_array_equal(np.sort(drawn), np.arange(4000))


@pytest.mark.parametrize("run", [1, 4])
def test_an_example_depends_on_seed_and_place_alone(run):
    groups = np.zeros(17, int)
    whole = mixed(run=run, groups=groups)(np.arange(9000))
    for places in (np.arange(3990, 4020), np.asarray([8999, 0, 1000, 999])):
        np.testing.assert_array_equal(mixed(run=run, groups=groups)(places), whole[places])
    assert not np.array_equal(whole, mixed(run=run, groups=groups, seed=1)(np.arange(9000)))
    runs = whole.reshape(-1, run) < 5
    assert (runs == runs[:, :1]).all()  # a run is of one source


def test_rounds_and_sources_have_orders_of_their_own():
    drawn = mixed(weights=(1, 1))(np.arange(2 * ROUND)) < 5
    assert not np.array_equal(drawn[:ROUND], drawn[ROUND:])
    drawn = Mixed((12, 12), (1, 1), None, run=1, seed=0)(np.arange(ROUND))
    assert not np.array_equal(drawn[drawn < 12][:12], drawn[drawn >= 12][:12] - 12)


@pytest.mark.parametrize("count", [1, 2, 3, 17, 64, 1000])
def test_a_computed_order_is_a_permutation_of_its_own_for_each_key(count):
    places = np.arange(count)
    found = permuted(places, count, (0, 1))
    np.testing.assert_array_equal(np.sort(found), places)
    np.testing.assert_array_equal(permuted(places[::-3], count, (0, 1)), found[::-3])
    if count > 16:
        assert not np.array_equal(found, permuted(places, count, (0, 2)))
        assert not np.array_equal(found, places)


def test_a_computed_order_has_no_trend():
    # Neighbours and halves are independent: correlations of 40,000 examples have a standard deviation of 0.005.
    found = permuted(np.arange(40_000), 40_000, (3,))
    assert abs(np.corrcoef(found[:-1], found[1:])[0, 1]) < 0.02
    assert abs(np.corrcoef(found, np.arange(40_000))[0, 1]) < 0.02
    assert abs(np.mean(found % 2 == np.arange(40_000) % 2) - 0.5) < 0.01


def test_large_sources_are_drawn_in_computed_epochs_with_orders_of_their_own(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("endx_jax.data.batches.sampler.MOST_DRAWN", 8)
        drawn = mixed(weights=(1, 1))(np.arange(24))
        epochs = Epochs(None, 20, run=1, seed=0)(np.arange(60)).reshape(3, 20)
    small, large = drawn[drawn < 5], drawn[drawn >= 5]
    assert len(small) + len(large) == 24
    other = mixed(weights=(1, 1))(np.arange(24))
    np.testing.assert_array_equal(other[other < 5], small)  # too small to be computed
    assert not np.array_equal(other[other >= 5], large)
    assert len(set(large[:12])) == len(large[:12])
    np.testing.assert_array_equal(np.sort(epochs, axis=1), np.tile(np.arange(20), (3, 1)))
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_memory_of_a_step_does_not_grow_with_the_longest_list_of_hard_negatives():
    index = np.stack([np.arange(32)] * 2, axis=1)
    listed = Ragged.from_rows([range(100_000), *[range(4)] * 31])
    sampler = Sampler(
        Pairs(None, None, index, listed, listed, None, 8, 8), seed=0, global_batch_size=32, hard_negatives=3
    )
    tracemalloc.start()
    drawn = sampler(0).hard_id
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000  # a number for each place of [32, 100,000] takes 26 MB
    assert all(len(set(row)) == 3 for row in drawn.tolist())
    assert drawn.max() > 1000
    np.testing.assert_array_equal(drawn, sampler(0).hard_id)


def test_shares_of_sizes_and_weights_become_whole_runs():
    np.testing.assert_allclose(Sources((1.0, 2.0)).shares((10, 1000)), [1, 2])
    np.testing.assert_allclose(Sources((1.0, 2.0), temperature=1.0).shares((10, 1000)), [10, 2000])
    np.testing.assert_allclose(Sources((1.0, 1.0), temperature=2.0).shares((16, 100)), [4, 10])
    np.testing.assert_array_equal(runs_of_round((1, 1, 1)), [334, 333, 333])
    np.testing.assert_array_equal(runs_of_round((1, 0.5)), [667, 333])


@pytest.mark.parametrize(
    ("sizes", "weights", "named"),
    [
        (SIZES, (1, 0.0001), ["source 1 of data.mixture", "one in 1,000"]),
        ((3, 0), (1, 1), ["source 1 of data.mixture", "all its pairs"]),
        (SIZES, (0.0001, 1), ["data.path", "never be drawn"]),
    ],
)
def test_a_source_that_would_never_be_drawn_is_refused(sizes, weights, named):
    check_refusal(lambda: Mixed(sizes, weights, None, run=1, seed=0), *named)
