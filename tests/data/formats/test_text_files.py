import gzip
import json

import pytest
from fuzzing import only_user_errors
from helpers import refusal, written
from refusals import check_refusal

from endx_jax.data.formats import read, row_files, text_files
from endx_jax.data.formats.folders import find
from endx_jax.errors import EndxError


def read_lines(path) -> list[tuple[int, str]]:
    return list(text_files.lines(str(path)))


def test_lines_are_numbered_from_one_keep_their_newline_and_may_be_packed(tmp_path):
    path = written(tmp_path / "x.txt", "\ufeffé\r\nb".encode())
    assert read_lines(path) == [(1, "é\r\n"), (2, "b")]
    path = written(tmp_path / "x.GZ", gzip.compress("a\nü\n".encode()))
    assert read_lines(path) == [(1, "a\n"), (2, "ü\n")]


def test_a_file_that_is_not_there_and_a_folder_are_refused(tmp_path):
    check_refusal(lambda: read_lines(tmp_path / "no"), f"{tmp_path}/no", "no such file")
    check_refusal(lambda: read_lines(tmp_path), f"{tmp_path}: cannot be read")


@pytest.mark.parametrize("indent", [None, 1])
def test_a_list_is_read_item_by_item_wherever_blocks_end(tmp_path, monkeypatch, indent):
    items = [{"a": 1.25, "b": [{"é": "\\"}]}, {}, {"c": "x" * 30, "d": [True, None, "]}"]}] * 3
    items.append({"several blocks": "é" * 300})
    path = written(tmp_path / "x.json", json.dumps(items, indent=indent, ensure_ascii=False))
    for size in range(1, 250):
        monkeypatch.setattr(text_files, "_BLOCK", size)
        found = list(text_files.items(str(path)))
        assert [item for _, item in found] == items
        assert [number for number, _ in found][:3] == ([1, 1, 1] if indent is None else [2, 10, 11])


DEEP = "[" * 100_000 + "]" * 100_000
HUGE = "9" * 5_000


@pytest.mark.parametrize("value", [DEEP, HUGE])
@pytest.mark.parametrize("holder", ['{"a": %s}', '[{"a": 1},\n{"a": %s}]'])
def test_deep_nesting_and_long_numbers_are_refused(tmp_path, value, holder):
    path = written(tmp_path / "x.json", holder % value)
    reason = "the JSON is nested too deeply" if value == DEEP else "a whole number has more than 4,300 digits"
    assert refusal(lambda: list(row_files.read_rows(str(path)))).endswith(reason)


def bomb(path, *parts: tuple[bytes, int]):
    """Writes gzip data of parts repeated so many times."""
    with gzip.open(path, "wb", compresslevel=1) as file:
        for part, count in parts:
            for _ in range(count):
                file.write(part)
    return str(path)


MEGABYTE = b"x" * 1_000_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "parts", "reason"),
    [
        ("x.jsonl.gz", ((b'{"question": "', 1), (MEGABYTE, 600)), "line 1: the line is longer than 32,000,000 bytes"),
        ("x.csv.gz", ((b"question,answer\n", 1), (MEGABYTE, 600)), "line 2: the line is longer than 32,000,000 bytes"),
        ("x.csv.gz", ((b'question,answer\nq,"', 1), ((b"x" * 99 + b"\n") * 10_000, 600)), "over 32,000,000 characters"),
        ("x.json.gz", ((b'[{"question": "', 1), (MEGABYTE, 600)), "an item of the list is longer than 32,000,000 char"),
        ("x.json.gz", ((b'{"data": [{"paragraphs": "', 1), (MEGABYTE, 600)), "larger than 256,000,000 bytes"),
        ("x.json.gz", ((b'{"data": [', 1), (b"[]," * 100_000, 500)), "more than 40,000,000 values"),
        ("x.json.gz", ((b'[{"question": [', 1), (b"[]," * 100_000, 90)), "more than 4,000,000 values in one line"),
        ("x.jsonl.gz", ((b'{"question": [', 1), (b"[]," * 100_000, 90)), "more than 4,000,000 values in one line"),
    ],
)
def test_memory_stays_bounded_whatever_a_file_unpacks_to(tmp_path, name, parts, reason):
    path = bomb(tmp_path / name, *parts)
    with only_user_errors(), pytest.raises(EndxError, match=reason):
        read(path)


@pytest.fixture
def folder(tmp_path):
    for name in ("a.json.gz", "b.json", "b.json.gz", "parts/p-2.jsonl", "parts/p-1.jsonl.gz", "parts/other.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def found(folder, *names):
    return [[path.removeprefix(f"{folder}/") for path in part] for part in find(folder, names)]


def test_plain_comes_before_packed_and_missing_files_are_named(folder, tmp_path):
    assert found(folder, "a.json", "b.json") == [["a.json.gz"], ["b.json"]]
    assert found(folder, "parts/p-*.jsonl") == [["parts/p-1.jsonl.gz", "parts/p-2.jsonl"]]
    check_refusal(lambda: find(folder, ["a.json", "x.json|y.json", "z.json"]), "x.json", "y.json", "z.json")
    check_refusal(lambda: find(tmp_path / "absent", ["a.json", "b.json"]), "a.json", "b.json")
