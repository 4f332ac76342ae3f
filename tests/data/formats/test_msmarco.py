import functools
import gzip

import helpers
import pytest
from helpers import written

from endx_jax.data import RetrievalSet, read
from endx_jax.data.formats import open_data

COLLECTION = '0\tzero\n1\tsays "one\n2\ttwo\n3\tzero\n4\t\n'
QUERIES = "10\twhat is it\n11\twho is it\n12\tnobody judged this\n"
# Right are 2 and 0 for query 10, and 3, which is 0 again, for 11.
QRELS = "10\t0\t2\t1\n\n11\t0\t3\t2\n10\t0\t0\t1\n10\t0\t1\t0\n"
refusal = functools.partial(helpers.refusal, read)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "collection.tsv").write_text(COLLECTION)
    (tmp_path / "queries.dev.small.tsv").write_text(QUERIES)
    (tmp_path / "qrels.dev.small.tsv").write_text(QRELS)
    return tmp_path


def test_the_pool_is_the_passages_that_are_right_for_something(folder):
    asked, pool = ("what is it", "who is it"), ("two", "zero")
    expected = RetrievalSet(asked, pool, ((0, 1), (1,)), ("10", "11"), ("2", "0"))
    assert read(folder) == read(folder, split="dev.small") == expected
    for name in ("collection.tsv", "queries.dev.small.tsv", "qrels.dev.small.tsv"):
        (folder / f"{name}.gz").write_bytes(gzip.compress((folder / name).read_bytes()))
        (folder / name).unlink()
    assert read(folder) == expected
    judged = open_data(folder).judgements()
    assert (judged.ids, judged.texts) == (("10", "11"), ("what is it", "who is it"))
    assert [list(passages) for passages in judged.right] == [["2", "0"], ["3"]]


def test_splits_are_named_by_their_files(folder):
    assert refusal(folder, split="test") == (f"{folder}: no split 'test'; choose with split from dev.small")
    (folder / "qrels.train.tsv").write_text("12\t0\t1\t1\n")
    assert refusal(folder) == f"{folder}: several splits; choose one with split: dev.small, train"
    assert refusal(folder, split="train") == f"{folder}: no queries.train.tsv in the folder, which is read as MS MARCO"
    (folder / "qrels.train.tsv").unlink()
    (folder / "qrels.dev.small.tsv").unlink()
    assert "no qrels.SPLIT.tsv in the folder" in refusal(folder)


@pytest.mark.parametrize(
    ("name", "text", "at", "reason"),
    [
        ("qrels", "10\t0\t2\n", "qrels", "line 1: a judgement has four fields: query id, 0, passage id and a whole"),
        ("qrels", "10\t0\t2\tyes\n", "qrels", "line 1: the score 'yes' is not a whole number"),
        ("qrels", f"10\t0\t2\t{'1' * 5000}\n", "qrels", "line 1: the score '1111111111111111111111111111"),
        ("qrels", "10\t0\t2\t1\n10\t0\t9\t1\n", "qrels", "line 2: '9' is not in collection.tsv"),
        ("qrels", "10\t0\t2\t1\n19\t0\t2\t1\n", "qrels", "line 2: '19' is not in queries.dev.small.tsv"),
        ("queries", "10 what\n", "queries", "line 1: 1 tab-separated columns where each line has an id and a text"),
        ("queries", f"{QUERIES}10\twhat else\n", "queries", "line 4: the id '10' belongs to two texts"),
    ],
)
def test_broken_lines_are_refused_by_their_numbers(folder, name, text, at, reason):
    (folder / f"{name}.dev.small.tsv").write_text(text)
    assert f"{folder / f'{at}.dev.small.tsv'}, {reason}" in refusal(folder)


def test_broken_collections_are_refused_by_their_lines(folder):
    path = written(folder / "collection.tsv", f"{COLLECTION}2\ttwo again\n")
    assert f"{path}, line 6: the id '2' belongs to two texts, 'two' and " in refusal(folder)
    path.write_bytes(COLLECTION.encode() + b"5\tcaf\xe9\n")
    assert f"{path}, line 6, byte 6: 0xe9 is not UTF-8" in refusal(folder)
    path.write_text(COLLECTION.replace("two", " "))
    assert f"{path}, line 3: the text that {folder / 'qrels.dev.small.tsv'}, line 1, names is empty" in refusal(folder)
    path.write_text("0\tzero\n1\tone\n2")  # cut in the middle
    assert refusal(folder) == f"{path}, line 3: 1 tab-separated columns where each line has an id and a text"
    packed = gzip.compress(COLLECTION.encode() * 100)
    path.unlink()
    (folder / "collection.tsv.gz").write_bytes(packed[: len(packed) // 2])
    assert "the gzip data ends too early" in refusal(folder)
