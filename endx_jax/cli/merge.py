"""`endx merge`: averages the parameters of models of one architecture."""

import argparse
import pathlib


def main(argv: list[str]) -> None:
    """Runs the verb with the arguments of the command line."""
    arguments = _parser().parse_args(argv)

    from endx_jax.inference.merging import merge_models
    from endx_jax.parallel.console import say

    merge_models(arguments.models, arguments.output, arguments.weights)
    say(f"{arguments.output} holds the mean of {len(arguments.models)} models; use it as --model={arguments.output}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="endx merge", description=__doc__.partition(": ")[2])
    parser.add_argument(
        "models",
        nargs="+",
        metavar="MODEL",
        help="workdir of a run; the second and later ones may be any model, such as the pretrained one of the run",
    )
    parser.add_argument(
        "--weights", type=float, nargs="+", default=(), metavar="W", help="weight of each model [equal weights]"
    )
    parser.add_argument("--output", type=pathlib.Path, required=True, help="model folder to write")
    return parser
