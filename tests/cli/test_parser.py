import pathlib
from typing import Any, Literal

import pytest

from endx_jax.cli.parser import parser_of


def example(
    source: str | pathlib.Path,
    *,
    top_k: int = 5,
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
      widths: widths.
      weights: weights [equal ones].
      kind: kind; in Python any.
      output: folder to write.
      fast: skip the rest.
      **reading: further flags.
    """


ABOUT = "`endx example`: does nothing.\n\nAnd more.\n"
PARSER = parser_of(
    *(ABOUT, example, lambda parser: parser.add_argument("--split", default="test")),
    **{"positional": ["source"], "groups": {"how": ["fast"]}, "kind": {"metavar": "KIND"}},
)


def test_flags_have_the_types_and_defaults_of_a_signature():
    given = ["x", "--top-k=3", "--widths", "1", "2", "--weights", "0.5", "--kind=b", "--output=y", "--fast"]
    found = {"source": "x", "top_k": 3, "widths": [1, 2], "weights": [0.5], "kind": "b", "fast": True, "split": "test"}
    assert vars(PARSER.parse_args(given)) == found | {"output": pathlib.Path("y")}
    found = PARSER.parse_args(["x", "--output=y"])
    assert (found.top_k, found.widths, found.weights, found.kind, found.fast) == (5, (8,), None, "a", False)
    given = ["x", "--output=y"]
    for refused in (["x"], ["--output=y"], [*given, "--kind=c"], [*given, "--weights"], [*given, "--top=3"]):
        with pytest.raises(SystemExit):
            PARSER.parse_args(refused)


def test_help_is_that_of_the_docstring_with_defaults_but_without_remarks_on_python():
    shown = " ".join(PARSER.format_help().split())
    for line in (
        *("usage: endx example [-h]", "does nothing. And more.", "source file to read ", "how: --fast skip the rest"),
        *("--top-k N results of 100 % [5]", "--kind KIND kind [a]", "WEIGHTS ...] weights [equal ones] "),
    ):
        assert line in shown
