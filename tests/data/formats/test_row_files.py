import json

import pytest
from helpers import refusal, written
from refusals import check_refusal

from endx_jax.data.formats import read_corpus, registry, row_files

PAIR = {"question": "q", "answer": "a"}


@pytest.mark.parametrize(
    ("name", "contents"),
    [
        ("x.csv", " ,\nquestion,answer\n,\nq,a\n , \t\n"),
        ("x.tsv", "question\tanswer\n\t\nq\ta\n"),
        ("x.json", json.dumps([{"question": None, "answer": " "}, PAIR, {}])),
        ("x.jsonl", [{"question": None, "answer": " "}, PAIR, {}]),
        ("x.parquet", [{"question": None, "answer": None}, PAIR]),
    ],
)
def test_rows_of_empty_cells_are_blank(tmp_path, name, contents):
    rows = row_files.read_rows(str(written(tmp_path / name, contents)))
    assert [row for _, _, row in rows] == [PAIR]


QUOTED = [('"The oven is cold', "said he"), ("Who lights it?", "Ann"), ('It was warm"', "said Ann"), ("q", "a")]


def table(rows, delimiter):
    return "".join(f"{delimiter.join(row)}\n" for row in [("question", "answer"), *rows])


def test_quotes_that_swallow_rows_are_named(tmp_path, caplog):
    path = written(tmp_path / "x.tsv", table(QUOTED, "\t"))
    reason = "lines 2 to 4 are one row in quotes, but look like several rows; a field that holds quotes must be quoted"
    assert refusal(lambda: registry.read(path)).startswith(f"{path}: {reason}")
    path = written(tmp_path / "x.csv", table(QUOTED, ","))
    assert len(registry.read(path).questions) == 2  # a comma may be part of a text
    assert f"{path}: {reason}" in caplog.text
    corpus = 'id\ttext\na\t"The oven is cold.\nb\tThe apprentice lights it.\nc\tIt was warm."\n'
    check_refusal(lambda: list(read_corpus(written(tmp_path / "c.tsv", corpus))), "lines 2 to 4")


@pytest.mark.parametrize("delimiter", ["\t", ","])
def test_quoted_fields_may_hold_lines_and_delimiters(tmp_path, caplog, delimiter):
    listed, cells = '"A list:\n- one, or\n- two"', f'"a{delimiter}{delimiter}\nb, c"'
    rows = [('"What is\nit?"', listed), ("q", cells), ('"say ""\n"', "x")]
    path = written(tmp_path / ("x.csv" if delimiter == "," else "x.tsv"), table(rows, delimiter))
    assert registry.read(path).candidates == (listed.strip('"'), cells.strip('"'), "x")
    assert not caplog.text
