"""Means, differences and verdicts of a row, and the t-test between rows."""

import dataclasses

import numpy as np
import pytest

from endx_jax.metrics.significance import paired_t_test, t_test
from reproduction.outcome import Outcome, holm, t_tests
from reproduction.tables import papers

TABLE = papers().tables["endx-table2"]
DUAL, ENDX = (papers().row(f"endx-table2/{name}") for name in ("Dual-GRUs", "ENDX-GRUs"))


def test_means_deviations_and_differences():
    found = Outcome(DUAL, ((54.0, 44.0, 68.0), (56.0, 46.0, 68.0)))
    assert found.means == (55.0, 45.0, 68.0)
    assert found.deviations == pytest.approx((2**0.5, 2**0.5, 0.0))
    assert found.differences == pytest.approx((55 - 55.24, 45 - 44.39, 0.0))


def test_a_row_holds_within_the_tolerance_in_every_column():
    assert Outcome(DUAL, ((55.24 + 0.99, 44.39 - 0.99, 68.0),)).holds(TABLE) is True
    assert Outcome(DUAL, ((55.24, 44.39, 68.0 + 1.01),)).holds(TABLE) is False


def test_shortened_empty_and_own_rows_are_not_judged():
    assert Outcome(DUAL, ((55.24, 44.39, 68.0),), differs="shorter").holds(TABLE) is None
    assert Outcome(DUAL, why="no data").holds(TABLE) is None
    assert Outcome(dataclasses.replace(DUAL, expected=()), ((1.0, 2.0, 3.0),)).holds(TABLE) is None


def test_a_row_is_tested_against_the_one_it_names():
    dual = Outcome(DUAL, ((55.0, 44.0, 68.0), (55.2, 44.3, 68.4), (55.1, 44.1, 68.2)))
    endx = Outcome(ENDX, ((58.0, 48.0, 70.0), (58.3, 48.1, 70.9), (58.1, 48.3, 70.5)))
    (found,) = t_tests([dual, endx])
    p = t_test([58.0, 58.3, 58.1], [55.0, 55.2, 55.1])
    assert p < 0.01
    assert found.startswith(f"ENDX-GRUs against Dual-GRUs, Welch's t-test over seeds: mrr +3.03, p = {p:.3g}, recall@1")


def test_rows_of_the_same_seeds_are_tested_in_pairs_and_adjusted_for_their_number():
    """The gains, 1.0, 1.1 and 0.9, vary less than the seeds; with another seed the rows are not paired."""
    base = (50.0, 55.0, 60.0)
    rows = {name: dataclasses.replace(DUAL, row=name, against="base") for name in "ab"}
    rows["base"] = dataclasses.replace(DUAL, row="base", against="")

    def outcome(name, values, seeds=(0, 1, 2)):
        facts = {"runs": [{"seed": seed} for seed in seeds]}
        return Outcome(rows[name], tuple((value,) * 3 for value in values), facts=facts)

    first = outcome("a", (51.0, 56.1, 60.9))
    second = outcome("b", (51.0, 56.1, 60.9), seeds=(0, 1, 3))
    paired, other = t_tests([outcome("base", base), first, second])
    p, p_other = (test(base, (51.0, 56.1, 60.9)) for test in (paired_t_test, t_test))
    assert paired.startswith(f"a against base, paired t-test over seeds: mrr +1.00, p = {p:.3g} (Holm {2 * p:.3g}), ")
    assert other.startswith(
        f"b against base, Welch's t-test over seeds: mrr +1.00, p = {p_other:.3g} (Holm {p_other:.3g})"
    )


@pytest.mark.parametrize("seeds", [1, 2])
def test_fewer_than_three_seeds_give_no_test(seeds):
    three = ((1.0, 2.0, 3.0), (1.0, 2.0, 4.0), (1.5, 2.0, 4.0))
    assert t_tests([Outcome(DUAL, three), Outcome(ENDX, three)]) != []
    assert t_tests([Outcome(DUAL, three[:seeds]), Outcome(ENDX, three)]) == []
    assert t_tests([Outcome(DUAL, three), Outcome(ENDX, three[:seeds])]) == []


def test_holm_multiplies_by_the_tests_that_are_left_and_keeps_the_order():
    """0.01 x 4; 0.02 x 3; 0.025 x 2 is less than the one before; 0.9 x 1."""
    np.testing.assert_allclose(holm([0.025, 0.9, 0.01, 0.02]), [0.06, 0.9, 0.04, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []
