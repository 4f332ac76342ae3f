"""Verdicts of rows, t-tests between them, and the page that shows them and never a number that was not computed."""

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


def test_a_row_has_means_and_deviations_and_holds_within_the_tolerance_in_every_column():
    found = Outcome(DUAL, ((54.0, 44.0, 68.0), (56.0, 46.0, 68.0)))
    assert found.means == (55.0, 45.0, 68.0)
    assert found.deviations == pytest.approx((2**0.5, 2**0.5, 0.0))
    assert found.differences == pytest.approx((55 - 55.24, 45 - 44.39, 0.0))
    near, own = ((55.24 + 0.99, 44.39 - 0.99, 68.0),), dataclasses.replace(DUAL, expected=())
    assert Outcome(DUAL, near).holds(TABLE) is True
    assert Outcome(DUAL, ((55.24, 44.39, 68.0 + 1.01),)).holds(TABLE) is False
    unjudged = Outcome(DUAL, near, differs="shorter"), Outcome(DUAL, why="no data"), Outcome(own, near)
    assert [outcome.holds(TABLE) for outcome in unjudged] == [None] * 3


def test_rows_with_three_seeds_are_tested_in_pairs_where_the_seeds_are_the_same_and_adjusted_for_their_number():
    """The gains, 1.0, 1.1 and 0.9, vary less than the seeds; with another seed the rows are not paired."""
    base, better = (50.0, 55.0, 60.0), (51.0, 56.1, 60.9)

    def outcome(name, values, seeds=(0, 1, 2)):
        row = dataclasses.replace(DUAL, row=name, against="" if name == "base" else "base")
        facts = {"runs": [{"seed": seed} for seed in seeds]}
        return Outcome(row, tuple((value,) * 3 for value in values), facts=facts)

    paired, other = t_tests([outcome("base", base), outcome("a", better), outcome("b", better, seeds=(0, 1, 3))])
    p, q = (test(base, better) for test in (paired_t_test, t_test))
    assert paired.startswith(f"a against base, paired t-test over seeds: mrr +1.00, p = {p:.3g} (Holm {2 * p:.3g}), ")
    assert other.startswith(f"b against base, Welch's t-test over seeds: mrr +1.00, p = {q:.3g} (Holm {q:.3g})")
    (alone,) = t_tests([outcome("base", base), outcome("b", better, seeds=(0, 1, 3))])
    assert f"p = {q:.3g}, recall@1" in alone
    for few in ((2, 3), (3, 2), (1, 3)):
        found = [outcome(name, values[:n]) for name, values, n in zip(("base", "a"), (base, better), few, strict=True)]
        assert t_tests(found) == []
    varied = Outcome(ENDX, ((3.0,) * 3, (4.0,) * 3, (3.5,) * 3))
    assert t_tests([Outcome(DUAL, ((1.0,) * 3, (2.0,) * 3, (4.0,) * 3)), varied])


def test_holm_multiplies_by_the_tests_that_are_left_and_keeps_the_order():
    """0.01 x 4; 0.02 x 3; 0.025 x 2 is less than the one before; 0.9 x 1."""
    np.testing.assert_allclose(holm([0.025, 0.9, 0.01, 0.02]), [0.06, 0.9, 0.04, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def outcome_of(row, *values, **more):
    return Outcome(papers().row(row), values, **more)


MADE = {"workdir": "w", "seed": 0, "steps": 80, "batch": 128, "manifest": MANIFEST}
SHORT = [
    outcome_of("endx-table2/InferSent"),
    outcome_of("endx-table2/Dual-GRUs", (58.0, 47.0, 66.0), differs="smaller", runs=("w",), facts={"runs": [MADE]}),
    outcome_of("endx-table2/Dual-LSTMs", why="needs --data squad=PATH"),
]
PAGE = """## endx-table2, 60 minutes

Answer retrieval on ReQA SQuAD. Wang et al. 2021 (ENDX), Table 2. SHORTENED to 60 minutes: not the paper's runs.

| row | seeds | mrr paper | mrr got | recall@1 paper | recall@1 got | recall@5 paper | recall@5 got |
| - | - | - | - | - | - | - | - |
| InferSent | quoted | 36.90 | | 27.91 | | 46.92 | |
| Dual-GRUs | 1 | 55.24 | 58.00 | 44.39 | 47.00 | 68.00 | 66.00 |

- InferSent: quoted, not run: copied by the paper from Yu et al.; its weights are a pickle for its own code
- Dual-GRUs: shortened: smaller
- Dual-LSTMs: skipped: needs --data squad=PATH
- Dual-GRUs: 80 steps of 128 pairs; seed 0
- sha256 of the training data: abababababab...
- commit 1234567+, Python 3.11.7, endx_jax 0.1.0, jax 0.10.2; 2 cores of a processor, 1 x cpu

```bash
python -m reproduction table endx-table2 --budget=60
```
"""


def unpadded(text):
    return re.sub("-{3,}", "-", re.sub(" +", " ", text))


def test_the_page_of_a_shortened_table_keeps_earlier_outcomes_and_has_no_difference_from_the_paper(tmp_path):
    options = Options(tmp_path, budget=60)
    failed = [outcome_of("endx-table2/Dual-GRUs", why="no folder squad")]
    for part in (SHORT[:2], SHORT[2:], failed):
        report.keep(TABLE, part, options)
    assert unpadded((tmp_path / "endx-table2" / "60-minutes.md").read_text()) == PAGE


def test_a_table_shows_spreads_verdicts_what_was_run_escaped_bars_and_intervals():
    def shown(name, *values, budget=0, **more):
        outcome = outcome_of(name, *values, **more)
        return unpadded(report.section(papers().tables[outcome.row.table], [outcome], budget)).splitlines()

    lines = shown("endx-table2/Dual-GRUs", (55.0, 44.0, 68.0), (56.0, 45.0, 68.0))
    heads = " | ".join(f"{name} paper | {name} got | {name} diff" for name in ("mrr", "recall@1", "recall@5"))
    assert f"| row | seeds | {heads} |" in lines
    cells = "55.24 | 55.50 ±0.71 | +0.26 | 44.39 | 44.50 ±0.71 | +0.11 | 68.00 | 68.00 ±0.00 | +0.00"
    assert f"| Dual-GRUs | 2 | {cells} |" in lines
    assert "- within 1 of the paper in every column: 1 of 1 rows" in lines
    values = (54.0, 44.0, 63.0)
    lines = shown("endx-table5/Dual-BERTs", values, budget=60, differs="smaller")
    assert "| Dual-BERTs: Dual-GRUs on SQuAD | 1 | 54.80 | 54.00 | 40.58 | 44.00 | 72.66 | 63.00 |" in lines
    cells = "56.37 | 54.00 | -2.37 | 42.01 | 44.00 | +1.99 | 74.65 | 63.00 | -11.65"
    assert rf"| ENDX-without-q\|q | 1 | {cells} |" in shown("endx-table5/ENDX-without-q|q", values)
    lines = shown("endx-study/GRU/ENDX", values, facts={"interval": {"mrr": (-0.5, 1.25)}})  # a row of our own
    assert "| row | seeds | mrr got | recall@1 got | recall@5 got |" in lines
    assert "- GRU/ENDX against GRU/Dual, 95 % interval: mrr -0.50 to +1.25" in lines
