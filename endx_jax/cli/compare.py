"""`endx compare`: tests whether one system is better than another, question by question."""

from endx_jax.cli.parser import parser_of
from endx_jax.errors import printable
from endx_jax.experiment.comparison import compare


def main(argv: list[str]) -> None:
    """Runs the verb with the arguments of the command line."""
    names = {"first": {"metavar": "RUN_A"}, "second": {"metavar": "RUN_B"}, "systems": {"metavar": "A[,B]"}}
    parser = parser_of(__doc__, compare, positional=["first", "second"], **names)
    print(printable(repr(compare(**vars(parser.parse_args(argv))))))
