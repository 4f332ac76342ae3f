"""`endx analyse`: draws figures of finished runs, and keeps the numbers behind each."""

import argparse
import dataclasses
import pathlib


def main(argv: list[str]) -> None:
    """Runs the verb with the arguments of the command line."""
    from endx_jax.analysis import FIGURES, Source, Study, make, redraw
    from endx_jax.experiment.compilation_cache import keep_programs
    from endx_jax.experiment.console import say
    from endx_jax.experiment.workdir import check_writable

    arguments = _parser(FIGURES).parse_args(argv)
    folder, name = arguments.output, arguments.name or arguments.figure
    check_writable(folder, "--output")
    target = folder / name
    if arguments.redraw:
        drawn = redraw({arguments.figure: FIGURES[arguments.figure]}, arguments.redraw, target)
        say(f"drew {drawn} again: {target}.png and {target}.svg")
        return
    figure = FIGURES[arguments.figure]
    options = figure.options(**{field.name: getattr(arguments, field.name) for field in _options(figure)})
    keep_programs()
    sources = [Source.parse(run) for run in arguments.run or ()]
    study = Study(sources, folder / "encodings", data=arguments.data, pool=arguments.pool)
    make(arguments.figure, figure, study, options, target)
    say(f"{target}.png, {target}.svg and the numbers behind them in {target}.json")


def _options(figure) -> tuple[dataclasses.Field, ...]:
    return dataclasses.fields(figure.options)


def _parser(figures) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="endx analyse", description=__doc__.partition(": ")[2])
    kinds = parser.add_subparsers(dest="figure", required=True, metavar="FIGURE")
    for name, figure in figures.items():
        kind = kinds.add_parser(name, help=figure.about, description=figure.about)
        _common(kind)
        for field in _options(figure):
            shown = f"{field.metadata['doc']} [{field.default}]" if field.default != "" else field.metadata["doc"]
            flag = f"--{field.name.replace('_', '-')}"
            kind.add_argument(flag, type=field.type, default=field.default, help=shown.replace("%", "%%"))
    return parser


def _common(parser: argparse.ArgumentParser) -> None:
    from endx_jax.data.settings import POOLS

    parser.add_argument(
        "--run",
        action="append",
        metavar="NAME=WORKDIR",
        help="a model and its name in the figure, as often as needed; instead of a workdir a pretrained folder or "
        "name, or bm25",
    )
    parser.add_argument(
        "--data", default="", help="a file or folder that a reader knows [the test split of the first run]"
    )
    parser.add_argument("--pool", choices=POOLS, default="", help="of SQuAD-format data [the first run's]")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("figures"), help="folder [figures]")
    parser.add_argument("--name", default="", help="of the files, without ending [that of the figure]")
    parser.add_argument("--redraw", type=pathlib.Path, help="draw again from a .json that was written before")
