import gzip
import json

import pytest
from fuzzing import only_user_errors
from helpers import one_line_error, refusal, written

from endx_jax import json_files
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


def test_missing_empty_and_folder_are_refused(tmp_path):
    assert refusal(lambda: read_lines(tmp_path / "no")) == f"{tmp_path}/no: no such file"
    (tmp_path / "empty").write_bytes(b"")
    assert refusal(lambda: read_lines(tmp_path / "empty")) == f"{tmp_path}/empty: the file is empty"
    (tmp_path / "empty.gz").write_bytes(gzip.compress(b""))
    assert refusal(lambda: read_lines(tmp_path / "empty.gz")) == f"{tmp_path}/empty.gz: the file is empty"
    assert refusal(lambda: read_lines(tmp_path)) == f"{tmp_path}: cannot be read: Is a directory"


def test_another_encoding_is_refused_with_line_and_byte(tmp_path):
    path = written(tmp_path / "x", "first\ncafé\n".encode("latin-1"))
    assert f"{path}, line 2, byte 4: 0xe9 is not UTF-8" in refusal(lambda: read_lines(path))
    advice = 'save it as UTF-8 (in Excel: "CSV UTF-8"), or run iconv -f'
    commands = "WINDOWS-1252 -t UTF-8 OLD > NEW (CP932 for Japanese, GB18030 for Chinese)"
    assert refusal(lambda: read_lines(path)).endswith(f"{advice} {commands}")
    path.write_bytes("first".encode("utf-16"))
    reason = f"{path}, line 1, byte 1: 0xff is not UTF-8: {advice} UTF-16 -t UTF-8 OLD > NEW"
    assert refusal(lambda: read_lines(path)) == reason


def test_broken_gzip_is_refused_whatever_is_broken(tmp_path):
    path = tmp_path / "x.gz"
    whole = gzip.compress(b"".join(b"line %d\n" % n for n in range(1000)))
    path.write_bytes(whole[: len(whole) // 2])
    message = refusal(lambda: read_lines(path))
    assert message == f"{path}: the gzip data ends too early; fetch the file again"
    path.write_bytes(b"not gzip at all")
    assert f"{path}: broken gzip data (Not a gzipped file" in refusal(lambda: read_lines(path))
    path.write_bytes(whole[:40] + bytes(20) + whole[60:])
    assert f"{path}: broken gzip data" in refusal(lambda: read_lines(path))


def test_objects_skip_blank_lines_and_count_them_and_broken_ones_are_refused(tmp_path):
    path = written(tmp_path / "x.jsonl", '{"a": 1}\n\n {"a": 2}')
    assert list(row_files.read_rows(str(path))) == [(1, f"{path}, line 1", {"a": 1}), (3, f"{path}, line 3", {"a": 2})]
    broken = {'{"a": 1': "line 2, column 8: broken JSON: Expecting ',' delimiter"}
    broken["[1]"] = "line 2 must be an object, not a list"
    for line, reason in broken.items():
        path.write_text('{"a": 1}\n' + line + "\n")
        assert refusal(lambda: list(row_files.read_rows(str(path)))) == f"{path}, {reason}"


@pytest.mark.parametrize("indent", [None, 1])
def test_a_list_is_read_item_by_item_wherever_blocks_end(tmp_path, indent, monkeypatch):
    items = [{"a": 1.25, "b": [{"é": "\\"}]}, {}, {"c": "x" * 30, "d": [True, None, "]}"]}] * 3
    path = written(tmp_path / "x.json", json.dumps(items, indent=indent, ensure_ascii=False))
    for size in (1, 2, 7, 100):
        monkeypatch.setattr(text_files, "_BLOCK", size)
        found = list(text_files.items(str(path)))
        assert [item for _, item in found] == items
        assert [number for number, _ in found][:3] == ([1, 1, 1] if indent is None else [2, 10, 11])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('[{"a": 1},\n {"a": 2,}]', "line 2: broken JSON: "),
        ('[{"a": 1},\n]', "line 2: broken JSON: ']' where { is expected"),
        ('[{"a": 1}\n{"a": 2}]', "line 2: broken JSON: '{' where , or ] is expected"),
        ("[1]", "line 1: broken JSON: '1' where { or ] is expected"),
        ('[{"a": 1}]\n[]', "line 2: broken JSON: '[' where the end of the file is expected"),
        ('[{"a": 1},', "line 1: the file ends inside what begins here; fetch it again"),
        ('[\n{"a": "b', "line 2: the file ends inside what begins here; fetch it again"),
    ],
)
@pytest.mark.parametrize("size", [1, 1000])
def test_broken_lists_are_refused_with_their_line(tmp_path, text, reason, size, monkeypatch):
    monkeypatch.setattr(text_files, "_BLOCK", size)
    path = written(tmp_path / "x.json", text)
    assert refusal(lambda: list(text_files.items(str(path)))).startswith(f"{path}, {reason}")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (" \n", "is empty"),
        (3.5, "must be a string, not a fractional number"),
        (False, "must be a string, not true or false"),
        ("a\ud83d", r"holds '\ud83d', half a surrogate pair, which is not text"),
    ],
)
def test_values_that_are_not_texts_are_refused_and_others_stripped(value, reason):
    assert refusal(lambda: json_files.as_text(value, "f, line 3: 'q'")) == f"f, line 3: 'q' {reason}"
    assert json_files.as_text(" \ta  b\u00a0\n", "x") == "a  b"
    assert json_files.as_text("  ", "x", may_be_empty=True) == ""


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
    with one_line_error("lacks x.json or y.json and z.json, which may also be there as .gz"):
        find(folder, ["a.json", "x.json|y.json", "z.json"])
    with one_line_error("absent: no such folder; give one that holds a.json and b.json, or the same as .gz"):
        find(tmp_path / "absent", ["a.json", "b.json"])
