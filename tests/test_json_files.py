import pytest

from endx_jax import json_files
from endx_jax.errors import EndxError


@pytest.mark.parametrize(
    ("contents", "reason"),
    [
        ('{"a": 1', "f, column 8: broken JSON: Expecting ',' delimiter"),
        ('{"a":\n 1', "f, line 2, column 3: broken JSON: Expecting ',' delimiter"),
        ("", "f, column 1: broken JSON: Expecting value"),
        (b'"\xff"', "f, byte 2: 0xff is not UTF-8"),
        ("[" * 100_000, "f: the JSON is nested too deeply"),
        ("9" * 5_000, "f: a whole number has more than 4,300 digits"),
        ("[]", "f must be an object, not a list"),
        ("null", "f must be an object, not null"),
    ],
)
def test_json_that_is_not_an_object_is_refused_in_one_line(contents, reason):
    with pytest.raises(EndxError) as refused:
        json_files.parse(contents, "f", dict)
    assert str(refused.value) == reason


def test_a_file_is_read_up_to_its_limit(tmp_path):
    file = tmp_path / "x.json"
    file.write_text('{"a": 1}')
    assert json_files.read(file, most_bytes=8) == {"a": 1}
    with pytest.raises(EndxError, match=r"x\.json is larger than 7 bytes"):
        json_files.read(file, most_bytes=7)
    with pytest.raises(EndxError, match=r"none\.json can't be read: No such file"):
        json_files.read(tmp_path / "none.json")
    with pytest.raises(EndxError, match="can't be read: Is a directory"):
        json_files.read(tmp_path)
    assert json_files.read_optional(tmp_path / "none.json") == {}
