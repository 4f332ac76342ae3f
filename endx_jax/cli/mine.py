"""`endx mine`: finds hard negatives for a data set's questions and writes a data set to train on.

Hard negatives are candidates that BM25, a model or an index ranks high and that are not known to be right. A teacher
can filter them.
"""

import argparse
import pathlib

from etils import epath

from endx_jax.cli.data_flags import add_data_flags, add_product_flag
from endx_jax.data.settings import POOLS


def main(argv: list[str]) -> None:
    """Runs the verb with the arguments of the command line."""
    arguments = _parser().parse_args(argv)

    from endx_jax.experiment.mining import mine
    from endx_jax.parallel.console import say

    mine(**vars(arguments))
    distilled = " --config.objective.distillation.loss=listwise_kl" if arguments.score_with else ""
    say(f"Train on them with --config.data.path={arguments.output} --config.data.hard_negatives=1{distilled}")


def _ranks(text: str) -> tuple[int, int]:
    """Parses a window of ranks such as `1-100`."""
    first, _, last = text.partition("-")
    if not (first.isdecimal() and last.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a range of ranks such as 1-100")
    return int(first), int(last)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="endx mine", description=__doc__.partition(": ")[2])
    parser.add_argument("--data", required=True, help="file, folder or prepared set with questions and right answers")
    parser.add_argument(
        "--pool", choices=POOLS, default="", help="retrieval unit of reading-comprehension data, as `data.pool`"
    )
    add_data_flags(parser, split="train")
    add_product_flag(parser)
    parser.add_argument(
        "--questions", type=int, default=0, metavar="N", help="mine for N questions only, chosen by hash [all]"
    )
    parser.add_argument(
        "--output", type=pathlib.Path, required=True, help="output folder, to train on with `data.path`"
    )
    source = parser.add_argument_group("ranking of the candidates (exactly one)")
    source.add_argument("--bm25", action="store_true", help="rank the data's candidates by stemmed BM25")
    source.add_argument("--workdir", type=epath.Path, help="workdir of a run, whose best checkpoint ranks")
    source.add_argument("--model", help="pretrained folder or name that ranks; with --index, the model that encoded it")
    source.add_argument("--index", type=epath.Path, help="index of `endx encode` whose documents are the candidates")
    which = parser.add_argument_group("selection of negatives")
    which.add_argument("--negatives", type=int, default=10, metavar="K", help="maximum negatives per question [10]")
    which.add_argument(
        "--ranks",
        type=_ranks,
        default=(1, 100),
        metavar="FIRST-LAST",
        help="window of ranks to take negatives from [1-100]",
    )
    which.add_argument(
        "--margin", type=float, help="minimum difference to the right answers' score [none; 0 with --teacher]"
    )
    which.add_argument(
        "--relative-margin",
        type=float,
        metavar="SHARE",
        help="minimum difference as a share of the right answers' score, such as 0.05",
    )
    which.add_argument(
        "--teacher",
        metavar="WORKDIR",
        help="workdir or name of a pair classifier or dual encoder that filters negatives",
    )
    which.add_argument(
        "--strata",
        action="store_true",
        help="spread negatives over all scores of --score-with, instead of the best-ranked; scores the whole window",
    )
    parser.add_argument(
        "--score-with",
        metavar="MODEL",
        help="model whose scores are written for distillation: workdir of a pair classifier, folder or name of a "
        "sentence-transformers CrossEncoder, or workdir or name of a dual encoder",
    )
    return parser
