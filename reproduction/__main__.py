"""`python -m reproduction`: computes the tables and figures of the papers, and measures the layers of a model."""

import argparse
import pathlib
import sys
from collections.abc import Callable, Collection

from endx_jax.errors import EndxError
from endx_jax.settings import check, check_choice


def main(argv: list[str]) -> None:
    """Runs the verb with the arguments of the command line."""
    arguments = _parser().parse_args(argv)
    arguments.run_task(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m reproduction", description=__doc__.partition(": ")[2])
    tasks = parser.add_subparsers(required=True, metavar="TASK")
    for add in (_add_reproduce, _add_cost, _add_figures, _add_layers):
        add(tasks)
    return parser


def _task(tasks, name: str, run: Callable[[argparse.Namespace], None], about: str) -> argparse.ArgumentParser:
    parser = tasks.add_parser(name, help=about, description=about)
    parser.set_defaults(run_task=run)
    return parser


def _add_reproduce(tasks) -> None:
    about = "Computes a table or a figure of a paper, resumes if interrupted, and compares with the paper."
    parser = _task(tasks, "table", _reproduce, about)
    _add_rows(parser)
    parser.add_argument(
        "--weights",
        action="append",
        default=[],
        metavar="NAME=PLACE",
        help="folder of a pretrained model, by its name in recipes, such as google/t5-v1_1-base=path",
    )
    parser.add_argument("--page", type=pathlib.Path, metavar="FILE.md", help="write all results in --output as a page")


def _add_cost(tasks) -> None:
    about = "Estimates memory and time of the trained rows of one table, or of all, on one chip."
    parser = _task(tasks, "cost", _cost, about)
    _add_rows(parser)
    parser.set_defaults(weights=[])
    parser.add_argument("--chip", default="A100", help="chip to estimate for [A100]")


def _add_rows(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that select rows, data and budget."""
    parser.add_argument(
        "table", nargs="?", default="", help="table or figure, such as endx-table2 or dong-figure2 [list all]"
    )
    parser.add_argument("rows", nargs="*", metavar="ROW", help="rows of the table [all]")
    parser.add_argument(
        "--data", action="append", default=[], metavar="NAME=PATH", help="place of a data set, such as squad=path"
    )
    parser.add_argument("--seeds", type=int, default=0, help="runs per row [the paper's number; 1 for shortened rows]")
    parser.add_argument(
        "--budget",
        type=float,
        default=0.0,
        metavar="MINUTES",
        help="shorten runs so that a table takes this long on two CPU cores",
    )
    parser.add_argument(
        "--output", type=pathlib.Path, default=pathlib.Path("runs/reproduce"), help="folder of runs [runs/reproduce]"
    )


def _reproduce(arguments: argparse.Namespace) -> None:
    from endx_jax.errors import nearest
    from endx_jax.experiment.workdir import check_writable
    from endx_jax.parallel.console import say
    from reproduction import report
    from reproduction.reproduce import draw, reproduce
    from reproduction.tables import PaperFigure, Table, papers

    options = _options(arguments)
    check_writable(options.output, "--output")
    tables, figures = papers().tables, papers().figures
    if arguments.table in figures:
        say(f"drew {draw(figures[arguments.table], options)}")
    elif arguments.table in tables:
        table = tables[arguments.table]
        outcomes = reproduce(table.chosen(arguments.rows), options)
        report.keep(table, outcomes, options)
        say(f"\n{report.text(table, outcomes, options.budget)}")
    elif arguments.table:
        close = nearest(arguments.table, [*tables, *figures])
        raise EndxError(f"unknown table {arguments.table!r}{close}; `endx papers reproduce` without a table lists all")
    elif not arguments.page:
        listed: dict[str, Table | PaperFigure] = {**tables, **figures}
        for name, one in listed.items():
            say(f"{name:<15} {one.title} ({one.paper})")
    if arguments.page:
        report.write_page(arguments.page, options.output)
        say(f"wrote {arguments.page}")


def _cost(arguments: argparse.Namespace) -> None:
    from endx_jax.parallel.console import say
    from endx_jax.planning.chips import chip_named
    from endx_jax.planning.subject import stay_offline
    from reproduction import cost
    from reproduction.tables import papers

    options = _options(arguments)
    stay_offline()
    chip, tables = chip_named(arguments.chip), papers().tables
    if arguments.table:
        check_choice("the table", arguments.table, tables)
    costs = cost.Costs(options, chip)
    for table in [tables[arguments.table]] if arguments.table else tables.values():
        found = [costs(row) for row in table.chosen(arguments.rows)]
        say(f"{cost.text(table, found, chip)}\n")


def _options(arguments: argparse.Namespace):
    from reproduction.runs import Options
    from reproduction.tables import papers

    check(min(arguments.seeds, arguments.budget) >= 0, "--seeds and --budget must not be negative")
    return Options(
        output=arguments.output,
        data=_named(arguments.data, "--data", papers().data),
        weights=_named(arguments.weights, "--weights"),
        seeds=arguments.seeds,
        budget=arguments.budget,
    )


def _named(given: list[str], flag: str, known: Collection[str] | None = None) -> dict[str, str]:
    """Parses NAME=PLACE arguments; raises EndxError for names that are not `known`."""
    found = dict(one.partition("=")[::2] for one in given)
    for name, place in found.items():
        check(bool(name and place), f"{flag}={name}: give NAME=PLACE, such as {flag}=squad=path/to/squad")
        if known is not None:
            check_choice(f"NAME of {flag}=NAME=PLACE", name, known)
    return found


def _add_figures(tasks) -> None:
    from endx_jax.data.settings import POOLS
    from reproduction.figures import FIGURES

    about = "Draws a figure of finished runs and writes the numbers behind it."
    parser = _task(tasks, "figure", _figures, about)
    kinds = parser.add_subparsers(dest="figure", required=True, metavar="FIGURE")
    for name, figure in FIGURES.items():
        kind = kinds.add_parser(name, help=figure.about, description=figure.about)
        kind.add_argument(
            "--run",
            action="append",
            metavar="NAME=WORKDIR",
            help="a model with its name in the figure, repeatable; a pretrained folder or name, or bm25, also works",
        )
        kind.add_argument(
            "--data", default="", help="file or folder of any supported format [the first run's test split]"
        )
        kind.add_argument("--pool", choices=POOLS, default="", help="pool of SQuAD-format data [the first run's]")
        kind.add_argument("--output", type=pathlib.Path, default=pathlib.Path("figures"), help="folder [figures]")


def _figures(arguments: argparse.Namespace) -> None:
    from endx_jax.experiment.compilation_cache import keep_programs
    from endx_jax.experiment.workdir import check_writable
    from endx_jax.parallel.console import say, working
    from reproduction.figures import FIGURES, Source, Study, make

    check_writable(arguments.output, "--output")
    target = arguments.output / arguments.figure
    keep_programs()
    sources = [Source.parse(run) for run in arguments.run or ()]
    study = Study(sources, arguments.output / "encodings", data=arguments.data, pool=arguments.pool)
    with working(f"computing the figure {arguments.figure}"):
        make(arguments.figure, FIGURES[arguments.figure], study, target)
    say(f"wrote {target}.png, {target}.svg and their numbers, {target}.json")


def _add_layers(tasks) -> None:
    from endx_jax.data.settings import POOLS

    about = "Ranks by the pooled token vectors of each layer of a model, and of the best mixture of layers."
    parser = _task(tasks, "layers", _layers, about)
    parser.add_argument(
        "--model",
        required=True,
        help="pretrained folder or name, file of word vectors, workdir, or an .hdf5 file of the vectors of each "
        "token in each layer, as AllenNLP writes ELMo's",
    )
    parser.add_argument("--data", required=True, help="folder of SQuAD's train and dev files, or any supported format")
    parser.add_argument("--pool", choices=("", *POOLS), help="pool of SQuAD-format data [paragraphs]")
    parser.add_argument("--output", type=pathlib.Path, help="folder to write into [runs/MODEL/layers]")
    parser.add_argument(
        "--write-texts",
        type=pathlib.Path,
        metavar="FILE",
        help="write the texts to compute token vectors for, and stop",
    )


def _layers(arguments: argparse.Namespace) -> None:
    from endx_jax.data.settings import PARAGRAPHS, DataSettings
    from endx_jax.experiment.compilation_cache import keep_programs
    from endx_jax.experiment.workdir import check_writable
    from endx_jax.parallel.console import say
    from reproduction.layer_report import Report, read_sets
    from reproduction.layers import pooled_layers, write_texts

    pool = arguments.pool if arguments.pool is not None else PARAGRAPHS
    settings = DataSettings(path=arguments.data, pool=pool, validation_fraction=0.1)
    sets = read_sets(settings)
    if arguments.write_texts:
        say(f"wrote {write_texts(arguments.write_texts, sets):,} texts, one per line: {arguments.write_texts}")
        return
    output = arguments.output or pathlib.Path("runs") / pathlib.Path(arguments.model).name / "layers"
    check_writable(output, "--output")
    keep_programs()
    for part, records in sets.items():
        say(f"{part}: {len(records.questions):,} questions, {len(records.candidates):,} candidates of {arguments.data}")
    report = Report(arguments.model, *pooled_layers(arguments.model, sets, cache=settings.cache))
    report.write(output)
    say(f"\n{report.tables()}\n\nresults are in {output}")


def run(argv: list[str]) -> int:
    """Runs a task; a user error is one line and status 2."""
    try:
        main(argv)
    except EndxError as error:
        print(f"reproduction: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
