"""Against scipy's tests and simulated runs."""

import numpy as np
import pytest
import scipy.stats
from refusals import check_refusal

from endx_jax.metrics.significance import paired_difference
from reproduction.significance import interval_over_runs, paired_t_test, t_test

SEEDS = [51.2, 50.1, 52.4], [54.9, 53.0, 53.8]


def test_t_tests_are_scipys_also_of_samples_that_do_not_vary():
    first, second = SEEDS
    for other in (second, [*second, 60.0]):
        assert t_test(first, other) == pytest.approx(scipy.stats.ttest_ind(first, other, equal_var=False).pvalue)
    assert paired_t_test(first, second) == pytest.approx(scipy.stats.ttest_rel(first, second).pvalue)
    assert t_test(second, first) == t_test(first, second)
    assert t_test([1, 1], [1, 1]) == 1
    assert t_test([1, 1], [2, 2]) == 0
    assert paired_t_test([1, 2], [1, 2]) == 1
    assert paired_t_test([1, 2], [2, 3]) == 0


def test_samples_that_do_not_fit_are_refused():
    for test in (t_test, paired_t_test):
        for wrong, second in (([1.0], [1.0]), ([1.0, float("nan")], [1.0, 2.0])):
            check_refusal(lambda test=test, a=wrong, b=second: test(a, b), "at least two finite values")
    check_refusal(lambda: paired_t_test([1, 2], [1, 2, 3]), "2 and 3")
    check_refusal(lambda: interval_over_runs(np.zeros((1, 40, 1))), "is 1", "at least two seeds")


@pytest.mark.parametrize(("runs", "too_narrow"), [(2, 0.55), (3, 0.8), (5, 0.88)])
@pytest.mark.parametrize("of_articles", [0.0, 0.3, 1.0, 3.0])
def test_an_interval_over_few_runs_covers_the_true_difference(runs, too_narrow, of_articles):
    """Each column is an experiment whose true difference is zero, with errors of runs, of articles and of both."""
    draw, articles, experiments = np.random.default_rng(8), 50, 1000
    of_runs = draw.normal(size=(runs, 1, experiments)) * (of_articles < 3)
    shared = of_articles * draw.normal(size=(articles, experiments)) * (articles / runs) ** 0.5
    values = of_runs + shared + of_articles * draw.normal(size=(runs, articles, experiments))
    names = np.repeat(np.arange(articles), 2).astype(str).tolist()
    low, high = interval_over_runs(np.repeat(values, 2, axis=1), clusters=names, draws=400)
    covered = np.mean((low <= 0) & (high >= 0))
    assert 0.93 < covered < 0.99
    if not of_articles:  # Negative control: a bootstrap over the runs, as before.
        means = values.mean(axis=1)[draw.integers(runs, size=(400, runs))].mean(axis=1)
        low, high = np.quantile(means, [0.025, 0.975], axis=0)
        assert np.mean((low <= 0) & (high >= 0)) < too_narrow


def test_an_interval_over_runs_that_agree_is_that_of_articles():
    draw = np.random.default_rng(9)
    counts = 1 + np.arange(30) % 4
    names = np.repeat([f"article {n}" for n in range(30)], counts).tolist()
    difference = np.repeat(draw.normal(size=30), counts)[:, None]
    found = interval_over_runs(np.stack([difference] * 3), clusters=names, draws=4000)
    (expected,) = paired_difference(np.zeros_like(difference), difference, clusters=names, draws=4000)
    assert found[:, 0] == pytest.approx([expected.low, expected.high], abs=0.04)
