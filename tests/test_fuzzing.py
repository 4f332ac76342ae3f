"""The shared property tests' own parts: what they draw, and that they fail where they should."""

import json

import numpy as np
import pytest
from fuzzing import damaged_json, fuzzed, only_user_errors
from hypothesis import given

from endx_jax import json_files
from endx_jax.errors import EndxError

VALID = json.dumps({"sizes": [1, 2], "name": "x", "about": {"kind": None}}).encode()


@fuzzed
@given(contents=damaged_json(VALID))
def test_the_json_reader_gives_no_traceback(tmp_path, contents):
    (tmp_path / "x.json").write_bytes(contents)
    with only_user_errors():
        json_files.read_json_file(tmp_path / "x.json")


def test_a_traceback_a_long_message_and_much_memory_fail():
    class Unbounded(EndxError):  # messages of the package are one line of bounded length
        __str__ = ValueError.__str__

    with only_user_errors():
        raise EndxError("one line")
    for raised, seen in (
        (KeyError("x"), KeyError),
        *((Unbounded(m), AssertionError) for m in ("two\nlines", "x" * 3000)),
    ):
        with pytest.raises(seen), only_user_errors():
            raise raised
    with pytest.raises(MemoryError), only_user_errors():
        np.zeros(2_000_000_000, np.int8)
