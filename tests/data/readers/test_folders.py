import pytest
from helpers import one_line_error

from endx_jax.data.readers.folders import find


@pytest.fixture
def folder(tmp_path):
    for name in ("a.json.gz", "b.json", "b.json.gz", "parts/p-2.jsonl", "parts/p-1.jsonl.gz", "parts/other.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def found(folder, *names):
    return [[path.removeprefix(f"{folder}/") for path in part] for part in find(folder, names)]


def test_plain_comes_before_packed_and_parts_in_order(folder):
    assert found(folder, "a.json", "b.json") == [["a.json.gz"], ["b.json"]]
    assert found(folder, "parts/p-*.jsonl") == [["parts/p-1.jsonl.gz", "parts/p-2.jsonl"]]


def test_the_first_alternative_that_is_there_counts(folder):
    assert found(folder, "x.json|parts/p-*.jsonl|a.json") == [["parts/p-1.jsonl.gz", "parts/p-2.jsonl"]]


def test_what_is_missing_is_named(folder, tmp_path):
    with one_line_error("lacks x.json or y.json and z.json, which may also be there as .gz"):
        find(folder, ["a.json", "x.json|y.json", "z.json"])
    with one_line_error("absent: no such folder; give one that holds a.json and b.json, or the same as .gz"):
        find(tmp_path / "absent", ["a.json", "b.json"])
