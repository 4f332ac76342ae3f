import pytest
from refusals import check_refusal

from endx_jax.data.sets.documents import check_id


@pytest.mark.parametrize("identifier", ["a/b", "...", ".a", " ", "a b", "ü" * 256, "x" * 512, "%0A", "\u200b"])
def test_ids_that_urls_and_lines_can_hold_are_accepted(identifier):
    assert check_id(identifier, "the id") == identifier


@pytest.mark.parametrize(
    ("identifier", "named"),
    [
        ("", "empty"),
        (".", "'.'"),
        ("..", "'..'"),
        ("a\nb", r"'\n'"),
        ("a\x00", r"'\x00'"),
        ("\x7f", r"'\x7f'"),
        ("a\u2028b", r"'\u2028'"),
        ("x" * 513, "512 bytes"),
        ("ü" * 257, "512 bytes"),
    ],
)
def test_other_ids_are_refused(identifier, named):
    check_refusal(lambda: check_id(identifier, "line 3: the id"), "line 3: the id", named)
