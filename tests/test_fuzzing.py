"""The shared property tests' own parts: what they draw, and that they fail where they should."""

import json

import numpy as np
import pytest
from fuzzing import damaged_json, fuzzed, only_user_errors
from hypothesis import given, settings

from endx_jax import json_files
from endx_jax.errors import EndxError

VALID = json.dumps({"sizes": [1, 2], "name": "x", "about": {"kind": None}}).encode()


@fuzzed
@given(contents=damaged_json(VALID))
def test_the_json_reader_gives_no_traceback(tmp_path, contents):
    (tmp_path / "x.json").write_bytes(contents)
    with only_user_errors():
        json_files.read_json_file(tmp_path / "x.json")


def test_each_kind_of_damage_is_drawn():
    drawn = []

    @settings(fuzzed, max_examples=500, derandomize=True)
    @given(contents=damaged_json(VALID))
    def draw(contents):
        drawn.append(contents)

    draw()
    for wanted in (b"[[[[[[", b"9" * 5_000, b"NaN", b"../../x", b": -5", b"\xff"):
        assert any(wanted in contents for contents in drawn), wanted
    assert any(VALID.startswith(contents) for contents in drawn)
    assert any(b"about" not in contents and contents.endswith(b'"name": "x"}') for contents in drawn)


def test_a_traceback_a_long_message_and_much_memory_fail():
    with only_user_errors():
        raise EndxError("one line")
    with pytest.raises(KeyError), only_user_errors():
        raise KeyError("x")

    class Unbounded(EndxError):  # messages of the package are one line of bounded length
        __str__ = ValueError.__str__

    for message in ("two\nlines", "x" * 3_000):
        with pytest.raises(AssertionError), only_user_errors():
            raise Unbounded(message)
    with pytest.raises(MemoryError), only_user_errors():
        np.zeros(2_000_000_000, np.int8)
    assert len(np.zeros(2_000_000_000, np.int8)) == 2_000_000_000
