"""Means, differences and verdicts of a row, and the t-test between rows."""

import dataclasses

import pytest

from endx_jax.metrics.significance import t_test
from endx_jax.papers.outcome import Outcome, t_tests
from endx_jax.papers.tables import papers

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
    found = t_tests([dual, endx])
    assert list(found) == ["ENDX-GRUs"]
    assert found["ENDX-GRUs"][0] == t_test([58.0, 58.3, 58.1], [55.0, 55.2, 55.1]) < 0.01


def test_one_seed_is_no_sample():
    assert t_tests([Outcome(DUAL, ((1.0, 2.0, 3.0),)), Outcome(ENDX, ((1.0, 2.0, 3.0), (1.0, 2.0, 4.0)))]) == {}
