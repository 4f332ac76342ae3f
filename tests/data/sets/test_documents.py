import pytest
from helpers import refused

from endx_jax.data.sets.documents import check_id


@pytest.mark.parametrize("identifier", ["a/b", "...", ".a", " ", "a b", "ü" * 256, "x" * 512, "%0A", "\u200b"])
def test_ids_that_urls_and_lines_can_hold_are_accepted(identifier):
    assert check_id(identifier, "the id") == identifier


@pytest.mark.parametrize(
    ("identifier", "message"),
    [
        ("", "^line 3: the id is empty$"),
        (".", r"the id is '\.', which URLs can't name"),
        ("..", r"the id is '\.\.', which URLs can't name"),
        ("a\nb", r"the id holds the control character '\\n'"),
        ("a\x00", r"the control character '\\x00'"),
        ("\x7f", r"the control character '\\x7f'"),
        ("a\u2028b", r"the control character '\\u2028'"),
        ("x" * 513, "the id is longer than 512 bytes"),
        ("ü" * 257, "the id is longer than 512 bytes"),
    ],
)
def test_other_ids_are_refused(identifier, message):
    refused(message, check_id, identifier, "line 3: the id")
