"""The printed table and the page: expected, got, difference, reasons, and never a number that was not computed."""

import dataclasses
import re

import pytest
from made_runs import MANIFEST

from reproduction import report
from reproduction.outcome import Outcome
from reproduction.runs import Options
from reproduction.tables import papers

TABLE = papers().tables["endx-table2"]
RUN = {"workdir": "w", "seed": 0, "steps": 80, "batch": 128, "manifest": MANIFEST}


def row(name):
    return papers().row(f"endx-table2/{name}")


def unpadded(text):
    return re.sub(" +", " ", text)


@pytest.fixture
def outcomes():
    return [
        Outcome(row("InferSent")),
        Outcome(row("Dual-GRUs"), ((58.0, 47.0, 66.0),), differs="smaller", runs=("w",), facts={"runs": [RUN]}),
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
