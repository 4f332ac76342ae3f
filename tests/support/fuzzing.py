"""Property tests of file readers: Hypothesis settings, strategies that damage a valid file, and the property.

`ENDX_FUZZ_EXAMPLES=10000` sets the number of examples of each test and draws new ones; without it a test runs a few,
the same on every run.
"""

import contextlib
import json
import os
import resource
from collections.abc import Iterator, Sequence

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from endx_jax.errors import EndxError

FULL = "ENDX_FUZZ_EXAMPLES" in os.environ
fuzzed = settings(
    max_examples=int(os.environ.get("ENDX_FUZZ_EXAMPLES", "25")),
    derandomize=not FULL,
    database=None,
    deadline=None,
    # Each example overwrites the file in `tmp_path`, and shrinking is worth more than the time that files take.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)

MOST_MEMORY = 500_000_000  # bytes
MOST_MESSAGE = 2_000  # characters

# JSON texts that take the place of a value; Python itself would not write the long numbers and the deep nesting.
HOSTILE = (
    *("null", "true", "false", "0", "1", "-1", "-5", "2.5", "1e999", "-1e999", "NaN", "1e-400"),
    *("1000000000", "2147483648", "9223372036854775808", "1" + "0" * 400, "1" + "0" * 4_000, "9" * 5_000),
    *('""', '" "', '"x"', '"0"', '"-5"', '"384"', '"../../x"', '"/etc/passwd"', '"\\u0000"', '"\\ud800"', '"a\\nb"'),
    *(f'"{"x" * 10_000}"', "[]", "{}", "[[]]", "[{}]", "[null]", "[1, 1]", '["x", "x"]', "[-1]", "[1000000000]"),
    *('{"": null}', '{"x": {}}', '{"x": [1]}', '{"content": 5}', '{"type": "x"}'),
    *("[" * 100_000 + "]" * 100_000, '{"a":' * 100_000 + "1" + "}" * 100_000, "[" * 500 + "]" * 500),
)


class Contents(bytes):
    """The bytes of a file, of which reports of a failure show the beginning."""

    def __repr__(self) -> str:
        return repr(bytes(self[:1000]))


_MARK = "\x00 hostile value \x00"


def damaged_bytes(valid: bytes) -> st.SearchStrategy[bytes]:
    """Draws the contents of a file cut short, with changed, removed, repeated or inserted bytes, or of other bytes."""
    place = st.integers(0, len(valid))
    hostile = [b"\n", b"\x00", b"\xff", b"\xef\xbb\xbf", b"9" * 5_000, b"[" * 9_999]
    some = st.binary(max_size=8) | st.sampled_from(hostile)
    spans = st.tuples(place, place).map(sorted)
    return st.one_of(
        place.map(lambda end: valid[:end]),
        st.lists(st.tuples(place, st.integers(1, 255)), min_size=1, max_size=4).map(lambda at: _flipped(valid, at)),
        st.tuples(spans, some).map(lambda cut: valid[: cut[0][0]] + cut[1] + valid[cut[0][1] :]),
        spans.map(lambda span: valid[: span[1]] + valid[span[0] :]),
        st.binary(max_size=64),
    ).map(Contents)


def damaged_json(valid: bytes) -> st.SearchStrategy[bytes]:
    """Draws the contents of a JSON file with up to three hostile, missing or copied values, or with damaged bytes."""
    tree = json.loads(valid)
    return st.integers(1, 3).flatmap(lambda count: _damaged_tree(tree, count)).map(Contents) | damaged_bytes(valid)


def damaged_json_lines(valid: bytes) -> st.SearchStrategy[bytes]:
    """Draws the contents of a JSONL file of which one line is damaged as `damaged_json` does, or its bytes are."""
    lines = valid.splitlines(keepends=True)

    def damaged(n):
        before, after = lines[:n], lines[n + 1 :]
        return damaged_json(lines[n]).map(lambda line: b"".join([*before, line.rstrip(b"\n") + b"\n", *after]))

    return st.integers(0, len(lines) - 1).flatmap(damaged).map(Contents) | damaged_bytes(valid)


@contextlib.contextmanager
def only_user_errors(most_memory: int = MOST_MEMORY) -> Iterator[None]:
    """Lets an EndxError of one short line pass, as what a user may see; allocations beyond `most_memory` bytes fail."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as stream:
        taken = int(stream.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + most_memory, before[1]))
    try:
        yield
    except EndxError as refused:
        message = str(refused)
        assert "\n" not in message, message
        assert len(message) <= MOST_MESSAGE, message[:MOST_MESSAGE]
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _flipped(valid: bytes, places: Sequence[tuple[int, int]]) -> bytes:
    changed = bytearray(valid)
    for place, mask in places:
        if place < len(changed):
            changed[place] ^= mask
    return bytes(changed)


@st.composite
def _damaged_tree(draw: st.DrawFn, tree: object, count: int) -> bytes:
    """Changes `count` places of a JSON tree."""
    texts = []
    holder = [json.loads(json.dumps(tree))]  # so that the whole tree is a place too
    for number in range(count):
        node, key = draw(st.sampled_from([*_places(holder)]))
        change = draw(st.sampled_from(("replace", "replace", "replace", "remove", "copy", "rename")))
        if change == "copy":
            other, other_key = draw(st.sampled_from([*_places(holder)]))
            node[key] = json.loads(json.dumps(other[other_key]))
        elif change == "remove" and node is not holder:
            del node[key]
        elif change == "rename" and isinstance(node, dict):
            node[draw(st.sampled_from(["", "x", "type", str(key) + "s"]))] = node.pop(key)
        else:
            node[key] = f"{_MARK}{number}"
            texts.append((json.dumps(node[key]), draw(st.sampled_from(HOSTILE))))
    written = json.dumps(holder[0])
    for mark, text in texts:
        written = written.replace(mark, text)
    return written.encode()


def _places(node: object) -> Iterator[tuple]:
    """Yields every list or object with each of its keys, `node`'s own first."""
    keys = [*node] if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
    for key in keys:
        yield node, key
        yield from _places(node[key])
