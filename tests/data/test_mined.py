import json

import pytest
from helpers import one_line_error

from endx_jax.data.mined import Negative, check_replaceable, write_mined
from endx_jax.data.readers import read
from endx_jax.data.records import RetrievalSet

RECORDS = RetrievalSet(
    questions=("who?", "wo ist es – dort?"),
    candidates=("right", "never used", "wrong", "also\nwrong", "right too"),
    qrels=((0,), (0, 4)),
    question_ids=("q1", "q2"),
    candidate_ids=("a", "b", "c", "d", "e"),
    groups=("Cats", "Dogs"),
)
NEGATIVES = [[Negative(2, 0.25, 3), Negative(3, 0.125, 4)], []]


def test_the_reader_finds_what_was_written(tmp_path):
    write_mined(tmp_path / "out", RECORDS, NEGATIVES, about={"by": "hand"})
    records = read(tmp_path / "out", split="train")
    assert records.questions == RECORDS.questions
    assert records.candidates == ("right", "wrong", "also\nwrong", "right too")
    assert records.candidate_ids == ("a", "c", "d", "e")
    assert records.qrels == ((0,), (0, 3))
    assert records.hard_negatives == ((1, 2), ())
    assert records.groups == RECORDS.groups
    lines = (tmp_path / "out" / "negatives" / "train.tsv").read_text().splitlines()
    assert lines == ["query-id\tcorpus-id\tscore\trank", "q1\tc\t0.25\t3", "q1\td\t0.125\t4"]
    assert json.loads((tmp_path / "out" / "mining.json").read_text()) == {"by": "hand"}


def test_older_ones_are_replaced_as_a_whole_and_anything_else_is_left_alone(tmp_path):
    write_mined(tmp_path / "out", RECORDS, NEGATIVES, split="old", about={})
    check_replaceable(tmp_path / "out")
    write_mined(tmp_path / "out", RECORDS, NEGATIVES, about={})
    assert [file.name for file in (tmp_path / "out" / "qrels").iterdir()] == ["train.tsv"]
    assert [file.name for file in tmp_path.iterdir()] == ["out"]
    with one_line_error("holds something else than mined negatives; name a new folder"):
        check_replaceable(tmp_path)
    with one_line_error("mining.json is a file; name a folder"):
        check_replaceable(tmp_path / "out" / "mining.json")


def test_a_break_half_way_leaves_nothing(tmp_path):
    with pytest.raises(TypeError):
        write_mined(tmp_path / "out", RECORDS, NEGATIVES, about={"the last file": object()})
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["a\tb", " a", "a\nb", ""])
def test_an_id_that_a_table_cannot_hold_is_refused(tmp_path, name):
    records = RetrievalSet(("q",), ("c",), ((0,),), (name,), ("d",))
    with one_line_error("can't stand in a table"):
        write_mined(tmp_path / "out", records, [[]], about={})
    assert not any(tmp_path.iterdir())
