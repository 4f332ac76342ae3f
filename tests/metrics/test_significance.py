"""Against tests that can be counted by hand, and data without a difference."""

import itertools

import numpy as np
import pytest

from endx_jax.metrics.significance import bootstrap_interval, mean_over_sets, paired_difference, questions_needed


@pytest.mark.parametrize("sizes", [(8,), (2, 6)])
def test_randomisation_is_the_exact_test_of_all_assignments(sizes):
    difference = np.asarray([0.5, 0.25, 0.25, 0.125, -0.125, 0.0, 0.5, 0.5])
    swapped = difference * np.asarray(list(itertools.product([1, -1], repeat=8)))
    means = np.mean([part.mean(axis=1) for part in np.split(swapped, np.cumsum(sizes)[:-1], axis=1)], axis=0)
    exact = np.mean(np.abs(means) >= means[0] - 1e-12)
    (found,) = paired_difference(np.zeros((8, 1)), difference[:, None], sizes=sizes, draws=20_000)
    assert found.mean == pytest.approx(means[0])
    assert found.p == pytest.approx(exact, abs=0.006)  # four standard errors: 4 sqrt(p (1 - p) / draws)


def test_each_set_counts_once_and_is_resampled_within():
    draw = np.random.default_rng(6)
    many, few = draw.random((900, 1)), 5 + draw.random((100, 1))
    values = np.concatenate([many, few])
    assert mean_over_sets(values, (900, 100)) == pytest.approx((many.mean() + few.mean()) / 2)
    assert mean_over_sets(values) == pytest.approx(values.mean())
    error = np.sqrt(many.var() / 900 + few.var() / 100) / 2
    expected = (many.mean() + few.mean()) / 2 + error * np.asarray([-1.96, 1.96])
    assert bootstrap_interval(values, sizes=(900, 100))[:, 0] == pytest.approx(expected, abs=0.15 * error)
    (found,) = paired_difference(np.zeros_like(values), values, sizes=(900, 100), draws=2000)
    assert [found.low, found.high] == pytest.approx(expected, abs=0.2 * error)
    # Negative control: as one set, the shares of both parts vary too.
    low, high = bootstrap_interval(values)[:, 0]
    assert high - low > 3 * (expected[1] - expected[0])


def test_clusters_are_resampled_and_swapped_as_wholes():
    draw = np.random.default_rng(8)
    # Twenty articles of one to five questions, which have the same difference.
    counts = 1 + np.arange(20) % 5
    names = np.repeat([f"article {n}" for n in range(20)], counts).tolist()
    difference = np.repeat(draw.normal(size=20), counts)[:, None]
    zero = np.zeros_like(difference)
    (found,) = paired_difference(zero, difference, clusters=names, draws=4000)
    assert found.mean == difference.mean()
    # The naive twin draws articles one by one and concatenates their questions.
    of_article = np.split(difference[:, 0], np.cumsum(counts)[:-1])
    means = [np.concatenate([of_article[n] for n in draw.integers(20, size=20)]).mean() for _ in range(4000)]
    assert [found.low, found.high] == pytest.approx(np.quantile(means, [0.025, 0.975]).tolist(), abs=0.05)
    sums = np.asarray([part.sum() for part in of_article])
    swapped = draw.choice([-1, 1], size=(4000, 20)) @ sums / counts.sum()
    assert found.p == pytest.approx(np.mean(np.abs(swapped) >= abs(found.mean)), abs=0.04)
    # Negative control: as single questions, the interval is narrower.
    (single,) = paired_difference(zero, difference, draws=4000)
    assert single.high - single.low < 0.8 * (found.high - found.low)
    # Clusters of one question each are no clusters, and are drawn within the sets.
    values = draw.random((40, 2))
    own = [f"{n:02}" for n in range(40)]
    plain = paired_difference(values, values[::-1], sizes=(10, 30), draws=100)
    assert paired_difference(values, values[::-1], sizes=(10, 30), clusters=own, draws=100) == plain


def test_draws_are_made_in_blocks(monkeypatch):
    """Two draws at a time are the same draws as all at once: 80 numbers of them fill whole words of the generator."""
    draw = np.random.default_rng(3)
    first, second = draw.random((2, 40, 2))
    whole = paired_difference(first, second, draws=301)
    monkeypatch.setattr("endx_jax.metrics.significance.BLOCK", 100)
    blocks = paired_difference(first, second, draws=301)
    assert [found.p for found in blocks] == [found.p for found in whole]
    for found, expected in zip(blocks, whole, strict=True):
        assert [found.mean, found.low, found.high] == pytest.approx([expected.mean, expected.low, expected.high])


def test_p_is_uniform_where_there_is_no_difference():
    """The negative control: of pairs of the same distribution, one in ten has p below 0.1."""
    draw = np.random.default_rng(4)
    found = paired_difference(draw.random((100, 300)), draw.random((100, 300)), draws=400)
    share = np.mean([difference.p < 0.1 for difference in found])
    assert share == pytest.approx(0.1, abs=0.07)
    covered = np.mean([difference.low <= 0 <= difference.high for difference in found])
    assert covered == pytest.approx(0.95, abs=0.05)


def test_equal_systems_do_not_differ():
    values = np.random.default_rng(5).random((20, 1))
    (found,) = paired_difference(values, values, draws=50)
    assert (found.mean, found.low, found.high, found.p) == (0, 0, 0, 1)
    draw = np.random.default_rng(7)
    low, high = bootstrap_interval(draw.random((20, 3)), draws=1)  # of one resample
    assert low.tolist() == high.tolist()
    first, second = draw.random((2, 50, 3))
    assert paired_difference(first, second, sizes=(50,), draws=90) == paired_difference(first, second, draws=90)


def test_questions_needed_give_the_interval_its_power():
    values, shares = np.array([-0.5, 0.0, 0.5, 1.0]), np.array([0.15, 0.55, 0.2, 0.1])
    gain = float(values @ shares)
    count = questions_needed(float((values - gain) ** 2 @ shares) ** 0.5, gain)
    draw = np.random.default_rng(0)
    drawn = [draw.choice(values, size=(count, 1), p=shares) for _ in range(400)]
    seen = [paired_difference(0 * one, one, draws=300)[0].low > 0 for one in drawn]
    assert count == 87
    assert 0.75 < np.mean(seen) < 0.87
