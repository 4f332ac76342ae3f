import pathlib
from typing import Any, Literal

import pytest

from endx_jax.cli.parser import parser_of


def example(
    source: str | pathlib.Path,
    *,
    top_k: int = 5,
    share: float | None = None,
    widths: tuple[int, ...] = (8,),
    weights: list[float] | None = None,
    kind: Literal["a", "b"] = "a",
    output: pathlib.Path,
    fast: bool = False,
    **reading: Any,
) -> None:
    """Does nothing.

    Args:
      source: file
        to read; in Python also rows.
      top_k: results of 100 %.
      share: share of all [half of them].
      widths: widths.
      weights: weights.
      kind: kind; in Python any.
      output: folder to write.
      fast: skip the rest.
      **reading: further flags.
    """


def add_split(parser):
    parser.add_argument("--split", default="test")


PARSER = parser_of(
    "`endx example`: does nothing.\n\nAnd more.\n", example, add_split, positional=["source"], groups={"how": ["fast"]},
    kind={"metavar": "KIND"},
)  # fmt: skip


def test_flags_have_the_types_and_defaults_of_a_signature():
    given = ["x", "--top-k=3", "--widths", "1", "2", "--weights", "0.5", "--kind=b", "--output=y", "--fast"]
    assert vars(PARSER.parse_args(given)) == {
        "source": "x", "top_k": 3, "share": None, "widths": [1, 2], "weights": [0.5], "kind": "b",
        "output": pathlib.Path("y"), "fast": True, "split": "test",
    }  # fmt: skip
    found = PARSER.parse_args(["x", "--output=y"])
    assert (found.top_k, found.widths, found.weights, found.kind, found.fast) == (5, (8,), None, "a", False)


@pytest.mark.parametrize(
    "given", [["x"], ["--output=y"], ["x", "--output=y", "--kind=c"], ["x", "--output=y", "--weights"]]
)
def test_what_a_signature_does_not_allow_is_refused(given):
    with pytest.raises(SystemExit):
        PARSER.parse_args(given)


def test_help_is_that_of_the_docstring_with_defaults_but_without_remarks_on_python():
    shown = " ".join(PARSER.format_help().split())
    assert "usage: endx example [-h]" in shown
    assert "does nothing. And more." in shown
    for line in (
        "source file to read ",
        "--top-k N results of 100 % [5]",
        "--share SHARE share of all [half of them] ",
        "--kind KIND kind [a]",
        "--output OUTPUT folder to write ",
        "how: --fast skip the rest",
    ):
        assert line in shown
