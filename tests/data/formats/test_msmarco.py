import gzip

import pytest

from endx_jax.data import RetrievalSet, read
from endx_jax.data.formats import open_data

COLLECTION = '0\tzero\n1\tsays "one\n2\ttwo\n3\tzero\n4\t\n'
QUERIES = "10\twhat is it\n11\twho is it\n12\tnobody judged this\n"
# Right are 2 and 0 for query 10, and 3, which is 0 again, for 11.
QRELS = "10\t0\t2\t1\n\n11\t0\t3\t2\n10\t0\t0\t1\n10\t0\t1\t0\n"


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
