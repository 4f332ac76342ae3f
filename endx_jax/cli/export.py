"""`endx export`: writes a model for sentence-transformers or as StableHLO programs."""

import argparse
import pathlib

from etils import epath

FORMATS = ("sentence-transformers", "stablehlo")


def main(argv: list[str]) -> None:
    """Runs the verb with the arguments of the command line."""
    arguments = _parser().parse_args(argv)

    from endx_jax.export.run import export
    from endx_jax.inference import load
    from endx_jax.parallel.console import say
    from endx_jax.parallel.environment import keep_programs

    keep_programs()
    tolerance = arguments.tolerance if arguments.verify else None
    model = load(arguments.workdir or arguments.model)
    report = export(model, arguments.format, arguments.output, tolerance, truncate_dim=arguments.truncate_dim)
    say(f"{report.model} is in {arguments.output}, as {report.format}; README.md there says how to use it")
    if report.passed:
        differences = ", ".join(f"{value:.2g} ({side})" for side, value in report.largest_difference.items())
        say(f"verified: over {report.texts} texts the largest difference is {differences}; tolerance {tolerance:g}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="endx export", description=__doc__.partition(": ")[2])
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--workdir", type=epath.Path, help="workdir of a run, whose best checkpoint is used")
    source.add_argument("--model", help="pretrained folder or name")
    parser.add_argument("--format", choices=FORMATS, default=FORMATS[0], help=f"format of the export [{FORMATS[0]}]")
    parser.add_argument(
        "--output", type=pathlib.Path, required=True, help="folder to write; an older export is replaced"
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="encode a few hundred texts with the export, by the library it is for, and compare with the model",
    )
    parser.add_argument("--tolerance", type=float, default=1e-5, help="largest difference that --verify allows [1e-5]")
    parser.add_argument(
        "--truncate-dim",
        type=int,
        metavar="N",
        help="keep the first N dimensions by default, for a model trained with objective.matryoshka_dims [all]",
    )
    return parser
