"""The data of the papers' tables: whole, consistent, and every run of it a config that the library takes."""

import pathlib

import pytest
from helpers import one_line_error

from endx_jax.experiment.config import resolve
from endx_jax.ranking.evaluate import MEASURES
from reproduction.figures import FIGURES
from reproduction.rows import KINDS
from reproduction.runs import Options, plan_of
from reproduction.tables import papers

ROWS = {row.name: row for table in papers().tables.values() for row in table.rows}
# What rows have beside the measures of a ranking: counts, answer matches, and the average precision of RR's Table 7.
OTHERS = {"ap", "accuracy@5", "accuracy@20", "accuracy@100", "questions", "paragraphs"} | {
    f"{split}_{what}" for split in ("train", "test") for what in ("questions", "answers", "rows")
}
DATA = {about.get("given", name): "somewhere" for name, about in papers().data.items()}


def test_every_table_of_the_papers_is_there():
    assert {name for name in papers().tables if "-table" in name} == {
        *(f"endx-table{n}" for n in (1, 2, 3, 4, 5, 6)),
        *(f"dong-table{n}" for n in (2, 3, 4, 5)),
        *(f"rr-table{n}" for n in range(1, 11)),
        *(f"yu-table{n}" for n in (2, 3)),
    }


def test_some_numbers_as_the_papers_print_them():
    assert ROWS["endx-table2/ENDX-BERTs"].expected == (73.43, 63.94, 85.18)
    assert ROWS["endx-table3/NewsQA/Dual-GRUs"].expected == (26.21, 16.86, 37.16)
    assert ROWS["endx-table5/ENDX-without-a|q"].expected == (55.87, 41.39, 74.14)
    assert ROWS["dong-table2/TriviaQA/ADE-SPL"].expected == (38.17, 50.3)
    assert ROWS["dong-table4/large/ADE-SPL"].expected == (68.06, 80.25, 86.23)
    assert ROWS["rr-table6/ELMo with IDF"].expected == (44.9, 56.3, 68.1, 76.0, 83.3, 89.8)
    assert ROWS["yu-table2/Cross-VAEs"].expected == (62.29, 55.60, 70.05)


@pytest.mark.parametrize("row", ROWS.values(), ids=list(ROWS))
def test_a_row_is_whole(row):
    assert len(row.expected) in (0, len(row.measures)), row.name
    assert set(row.measures) <= set(MEASURES) | OTHERS
    assert bool(row.quoted) or row.kind in KINDS
    assert not row.data or row.data in papers().data
    assert not row.of or row.of in ROWS
    # A budget gives a row as many steps as the row whose runs it takes.
    assert not row.of or papers().tables[row.table].minutes == papers().tables[ROWS[row.of].table].minutes
    assert not row.against or f"{row.table}/{row.against}" in ROWS


def test_every_trained_row_is_a_config():
    options, count = Options(pathlib.Path("out"), data=DATA), 0
    for row in ROWS.values():
        if row.recipe or row.of:
            plan = plan_of(row, options)
            settings = resolve(plan.config(3, options))
            assert settings.seed == 3
            assert settings.data.path == "somewhere"
            count += 1
    assert count > 100


def test_every_shortened_row_is_a_config():
    options, count = Options(pathlib.Path("out"), data=DATA, budget=30.0), 0
    for row in ROWS.values():
        if "form" in row.short or "of" in row.short:
            plan = plan_of(row, options)
            settings = resolve(plan.config(0, options))
            assert settings.data.validation_fraction == 0
            assert plan.differs
            count += 1
    assert count > 20


def test_figures_are_known_and_drawn_from_rows():
    assert not set(papers().figures) & set(papers().tables)  # `reproduce` takes both names
    assert set(papers().figures) == set(FIGURES)
    for figure in papers().figures.values():
        assert set(figure.runs) <= set(ROWS)


def test_an_unknown_row_is_refused_with_the_nearest():
    with one_line_error("a row of endx-table2 is 'Dual-GRU', .*Dual-GRUs"):
        papers().tables["endx-table2"].chosen(["Dual-GRU"])
