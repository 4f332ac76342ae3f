"""`endx mine`: finds hard negatives for a data set's questions and writes a data set to train on.

Hard negatives are candidates that BM25, a model, both or an index ranks high and that are not known to be right. A
teacher can filter them.
"""

import argparse

from endx_jax.cli.data_flags import add_data_flags, add_product_flag
from endx_jax.cli.parser import parser_of
from endx_jax.experiment.mining import mine

GROUPS = {
    "ranking of the candidates (one, or --bm25 with --workdir or --model)": ("bm25", "workdir", "model", "index"),
    "selection of negatives": ("negatives", "ranks", "margin", "relative_margin", "teacher", "strata"),
}


def main(argv: list[str]) -> None:
    """Runs the verb with the arguments of the command line."""
    ranks = {"type": _ranks, "nargs": None, "metavar": "FIRST-LAST"}
    parser = parser_of(__doc__, mine, add_data_flags, add_product_flag, groups=GROUPS, ranks=ranks)
    arguments = parser.parse_args(argv)
    mine(**vars(arguments))

    from endx_jax.parallel.console import say

    data = f"--config.data.path={arguments.output}"
    flags = f"--config=distill {data}" if arguments.score_with else f"{data} --config.data.hard_negatives=1"
    say(f"Train on them with {flags}")


def _ranks(text: str) -> tuple[int, int]:
    """Parses a window of ranks such as `1-100`."""
    first, _, last = text.partition("-")
    if not (first.isdecimal() and last.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a range of ranks such as 1-100")
    return int(first), int(last)
