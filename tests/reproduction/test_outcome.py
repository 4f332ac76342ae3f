"""Means, differences and verdicts of a row, the t-test between rows, and the table and the page of them.

They show what was expected and got, the difference and reasons, and never a number that was not computed.
"""

import dataclasses
import re

import numpy as np
import pytest
from made_runs import MANIFEST

from reproduction import report
from reproduction.outcome import Outcome, holm, t_tests
from reproduction.runs import Options
from reproduction.significance import paired_t_test, t_test
from reproduction.tables import papers

TABLE = papers().tables["endx-table2"]
DUAL, ENDX = (papers().row(f"endx-table2/{name}") for name in ("Dual-GRUs", "ENDX-GRUs"))


def test_means_deviations_and_differences():
    found = Outcome(DUAL, ((54.0, 44.0, 68.0), (56.0, 46.0, 68.0)))
    assert found.means == (55.0, 45.0, 68.0)
    assert found.deviations == pytest.approx((2**0.5, 2**0.5, 0.0))
    assert found.differences == pytest.approx((55 - 55.24, 45 - 44.39, 0.0))


def test_a_row_holds_within_the_tolerance_in_every_column_and_shortened_empty_and_own_rows_are_not_judged():
    assert Outcome(DUAL, ((55.24 + 0.99, 44.39 - 0.99, 68.0),)).holds(TABLE) is True
    assert Outcome(DUAL, ((55.24, 44.39, 68.0 + 1.01),)).holds(TABLE) is False
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


def test_fewer_than_three_seeds_give_no_test():
    values = ((1.0, 2.0, 3.0), (1.0, 2.0, 4.0), (1.5, 2.0, 4.0))
    for dual, endx in ((3, 3), (2, 3), (3, 2), (1, 3)):
        found = t_tests([Outcome(DUAL, values[:dual]), Outcome(ENDX, values[:endx])])
        assert bool(found) == (dual == endx)


def test_holm_multiplies_by_the_tests_that_are_left_and_keeps_the_order():
    """0.01 x 4; 0.02 x 3; 0.025 x 2 is less than the one before; 0.9 x 1."""
    np.testing.assert_allclose(holm([0.025, 0.9, 0.01, 0.02]), [0.06, 0.9, 0.04, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def row(name):
    return papers().row(f"endx-table2/{name}")


def unpadded(text):
    return re.sub(" +", " ", text)


@pytest.fixture
def outcomes():
    made = {"workdir": "w", "seed": 0, "steps": 80, "batch": 128, "manifest": MANIFEST}
    return [
        Outcome(row("InferSent")),
        Outcome(row("Dual-GRUs"), ((58.0, 47.0, 66.0),), differs="smaller", runs=("w",), facts={"runs": [made]}),
        Outcome(row("Dual-LSTMs"), why="needs --data squad=PATH"),
    ]


def test_the_table_of_shortened_runs_has_no_difference_from_the_paper(outcomes):
    lines = report.section(TABLE, outcomes, 60).splitlines()
    assert lines[0] == "## endx-table2, 60 minutes"
    assert lines[2].endswith("SHORTENED to 60 minutes: not the paper's runs.")
    infersent, gru = map(unpadded, lines[6:8])
    assert infersent == "| InferSent | quoted | 36.90 | | 27.91 | | 46.92 | |"
    assert gru == "| Dual-GRUs | 1 | 55.24 | 58.00 | 44.39 | 47.00 | 68.00 | 66.00 |"
    assert "- Dual-LSTMs: skipped: needs --data squad=PATH" in lines
    assert "- Dual-GRUs: shortened: smaller" in lines


def test_seeds_have_a_spread_and_whole_rows_a_verdict():
    found = Outcome(row("Dual-GRUs"), ((55.0, 44.0, 68.0), (56.0, 45.0, 68.0)))
    shown = report.section(TABLE, [found], 0)
    assert "SHORTENED" not in shown
    assert "55.50 ±0.71" in shown
    assert "+0.26" in shown
    assert "within 1 of the paper in every column: 1 of 1 rows" in shown


def test_kept_outcomes_are_read_again_and_other_rows_stay(tmp_path, outcomes):
    options = Options(tmp_path, budget=60)
    report.keep(TABLE, outcomes[:2], options)
    report.keep(TABLE, outcomes[2:], options)
    text = unpadded((tmp_path / "endx-table2" / "60-minutes.md").read_text())
    assert "| Dual-GRUs | 1 | 55.24 | 58.00 | 44.39 |" in text
    assert "| InferSent | quoted | 36.90 | | 27.91 |" in text
    assert "| Dual-LSTMs |" not in text
    assert "- Dual-LSTMs: skipped: needs --data squad=PATH" in text
    assert "- Dual-GRUs: 80 steps of 128 pairs; seed 0" in text
    assert "commit 1234567+, Python 3.11.7, endx_jax 0.1.0, jax 0.10.2; 2 cores of a processor, 1 x cpu" in text
    assert "- sha256 of the training data: abababababab..." in text
    assert "python -m reproduction table endx-table2 --budget=60" in text


def test_a_shortened_row_has_the_name_of_what_was_run():
    table = papers().tables["endx-table5"]
    found = Outcome(papers().row("endx-table5/Dual-BERTs"), ((54.0, 44.0, 63.0),), differs="smaller")
    assert "| Dual-BERTs: Dual-GRUs on SQuAD | 1 | 54.80 | 54.00 |" in unpadded(report.section(table, [found], 60))
    assert "| Dual-BERTs | 1 | 54.80 |" in unpadded(report.section(table, [dataclasses.replace(found, differs="")], 0))


def test_rows_of_our_own_have_no_column_of_a_paper_and_intervals():
    table = papers().tables["endx-study"]
    facts = {"interval": {"mrr": (-0.5, 1.25)}}
    found = Outcome(papers().row("endx-study/GRU/ENDX"), ((54.0, 44.0, 63.0),), facts=facts)
    page = unpadded(report.section(table, [found], 0))
    assert "| row | seeds | mrr got | recall@1 got | recall@5 got |" in page
    assert "- GRU/ENDX against GRU/Dual, 95 % interval: mrr -0.50 to +1.25\n" in page


def test_bars_in_names_are_escaped_on_the_page():
    table = papers().tables["endx-table5"]
    found = Outcome(papers().row("endx-table5/ENDX-without-q|q"), ((54.0, 44.0, 63.0),))
    assert r"| ENDX-without-q\|q | 1 | 56.37 |" in unpadded(report.section(table, [found], 0))
