import gzip

import pytest

from endx_jax.data.readers import files
from endx_jax.errors import EndxError


def refusal(call) -> str:
    with pytest.raises(EndxError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def read_lines(path) -> list[tuple[int, str]]:
    return list(files.lines(str(path)))


def test_lines_are_numbered_from_one_and_keep_their_newline(tmp_path):
    path = tmp_path / "x.txt"
    path.write_bytes("\ufeffé\r\nb".encode())
    assert read_lines(path) == [(1, "é\r\n"), (2, "b")]


def test_gzip_reads_as_plain_does(tmp_path):
    path = tmp_path / "x.GZ"
    path.write_bytes(gzip.compress("a\nü\n".encode()))
    assert read_lines(path) == [(1, "a\n"), (2, "ü\n")]


def test_missing_empty_and_folder_are_refused(tmp_path):
    assert refusal(lambda: read_lines(tmp_path / "no")) == f"{tmp_path}/no: no such file"
    (tmp_path / "empty").write_bytes(b"")
    assert refusal(lambda: read_lines(tmp_path / "empty")) == f"{tmp_path}/empty: the file is empty"
    (tmp_path / "empty.gz").write_bytes(gzip.compress(b""))
    assert refusal(lambda: read_lines(tmp_path / "empty.gz")) == f"{tmp_path}/empty.gz: the file is empty"
    assert refusal(lambda: read_lines(tmp_path)) == f"{tmp_path}: cannot be read: Is a directory"


def test_another_encoding_is_refused_with_line_and_byte(tmp_path):
    path = tmp_path / "x"
    path.write_bytes("first\ncafé\n".encode("latin-1"))
    assert f"{path}, line 2, byte 4: 0xe9 is not UTF-8" in refusal(lambda: read_lines(path))
    path.write_bytes("first".encode("utf-16"))
    assert f"{path}, line 1, byte 1: 0xff is not UTF-8" in refusal(lambda: read_lines(path))


def test_broken_gzip_is_refused_whatever_is_broken(tmp_path):
    path = tmp_path / "x.gz"
    whole = gzip.compress(b"".join(b"line %d\n" % n for n in range(1000)))
    path.write_bytes(whole[: len(whole) // 2])
    message = refusal(lambda: read_lines(path))
    assert message.startswith(f"{path}: the gzip data ends too early, after line ")
    assert message.endswith("fetch the file again")
    path.write_bytes(b"not gzip at all")
    assert f"{path}: broken gzip data after line 0 (Not a gzipped file" in refusal(lambda: read_lines(path))
    path.write_bytes(whole[:40] + bytes(20) + whole[60:])
    assert f"{path}: broken gzip data" in refusal(lambda: read_lines(path))


def test_objects_skip_blank_lines_and_count_them(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}\n\n {"a": 2}')
    assert list(files.objects(str(path))) == [(1, {"a": 1}), (3, {"a": 2})]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"a": 1', "line 2, column 8: broken JSON: Expecting ',' delimiter"),
        ("[1]", "line 2: a line must be a JSON object, not a list"),
        ("null", "line 2: a line must be a JSON object, not null"),
        ("true", "line 2: a line must be a JSON object, not true or false"),
    ],
)
def test_broken_objects_are_refused_with_their_place(tmp_path, line, reason):
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}\n' + line + "\n")
    assert refusal(lambda: list(files.objects(str(path)))) == f"{path}, {reason}"


def test_text_strips_the_ends_and_nothing_else():
    assert files.text(" \ta  b\u00a0\n", "x") == "a  b"
    assert files.text("  ", "x", may_be_empty=True) == ""


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (" \n", "f, line 3: 'q' is empty"),
        (3.5, "f, line 3: 'q' must be a string, not a fractional number"),
        (False, "f, line 3: 'q' must be a string, not true or false"),
        ("a\ud83d", r"f, line 3: 'q' holds '\ud83d', half a surrogate pair, which is no text"),
    ],
)
def test_what_is_no_text_is_refused(value, reason):
    assert refusal(lambda: files.text(value, "f, line 3: 'q'")) == reason
