import pytest

from endx_jax.data import RetrievalSet, read
from endx_jax.errors import EndxError


def test_a_path_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(EndxError, match=r"x\.json: no such file or folder$"):
        read(tmp_path / "x.json")


def test_an_unknown_ending_is_refused_with_the_known_ones(tmp_path):
    (tmp_path / "x.parquet.gz").write_text("x")
    with pytest.raises(EndxError) as caught:
        read(tmp_path / "x.parquet.gz")
    known = "known are .json, .jsonl, .csv, .tsv, each also with .gz, and BEIR folders"
    assert str(caught.value) == f"{tmp_path}/x.parquet.gz: unknown ending '.parquet'; {known}"


def test_the_ending_decides_in_upper_case_too_and_paths_may_be_strings(tmp_path):
    (tmp_path / "X.CSV").write_text("question,answer\nq,a\n")
    assert read(str(tmp_path / "X.CSV")) == RetrievalSet(("q",), ("a",), ((0,),), ("q0",), ("d0",))
