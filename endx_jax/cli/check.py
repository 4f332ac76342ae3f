"""`endx check`: reports problems in training data, and how well search works before training."""

from endx_jax.cli.data_flags import add_data_flags
from endx_jax.cli.parser import parser_of
from endx_jax.experiment.check import check


def main(argv: list[str]) -> None:
    """Runs the verb with the arguments of the command line."""
    parser = parser_of(__doc__, check, add_data_flags, positional=["pairs"], pairs={"metavar": "data"})
    arguments = parser.parse_args(argv)

    from endx_jax.parallel.environment import keep_programs

    keep_programs()
    print(check(**vars(arguments)))
