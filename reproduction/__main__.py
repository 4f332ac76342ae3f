"""Computes the tables and figures of the papers: `python -m reproduction TASK`."""

import argparse
import os
import pathlib
import shlex
import sys
from collections.abc import Collection

from endx_jax.buckets import url_of
from endx_jax.cli.data_flags import add_product_flag
from endx_jax.cli.entry import guarded
from endx_jax.files import expanded
from endx_jax.settings import check_choice, require

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # read when JAX is imported, below


def table(arguments: argparse.Namespace) -> None:
    """Computes a table, resumes if interrupted, and compares with the paper; without a name lists all."""
    from endx_jax.experiment.workdir import check_writable
    from reproduction import public, report
    from reproduction.rows import reproduce
    from reproduction.tables import PaperFigure, Table, papers

    options = _options(arguments)
    check_writable(options.output, "--output")
    if arguments.table == public.NAME:
        require(not options.seeds and not options.budget, f"{public.NAME} has no --seeds and no --budget")
        print(f"\n{public.public_table(arguments.rows, options)}")
    elif arguments.table:
        check_choice("the table", arguments.table, [*papers().tables, public.NAME])
        chosen = papers().tables[arguments.table]
        outcomes = reproduce(chosen.chosen(arguments.rows), options)
        page = report.keep(chosen, outcomes, options)
        print(f"\n{report.section(chosen, outcomes, options.budget)}\nall rows so far are in {page}")
    else:
        listed: list[Table | PaperFigure] = [*papers().tables.values(), *papers().figures.values()]
        print("\n".join(f"{one.name:<18} {one.title} ({one.paper})" for one in listed))
        print(f"{public.NAME:<18} {public.TITLE}")


def figure(arguments: argparse.Namespace) -> None:
    """Draws a figure from the runs of its rows, or from those of --run, and writes the numbers behind it."""
    from endx_jax.experiment.workdir import check_writable
    from endx_jax.parallel.environment import keep_programs
    from reproduction.figures import make, sources_of
    from reproduction.figures.study import FigureSource, Study
    from reproduction.tables import papers

    options = _options(arguments)
    check_choice("the figure", arguments.figure, papers().figures)
    check_writable(options.output, "--output")
    keep_programs()
    given = [FigureSource.parse(run) for run in arguments.run]
    name = arguments.figure if given else f"{arguments.figure}-{options.length}"
    target = options.output / "figures" / name
    sources = given or sources_of(papers().figures[arguments.figure], options)
    make(arguments.figure, Study(sources), target)
    print(f"wrote {target}.png and its numbers, {target}.json")


def cost(arguments: argparse.Namespace) -> None:
    """Estimates memory and time of the trained rows of one table, or of all, on one chip."""
    from endx_jax.planning.chips import chip_named
    from endx_jax.planning.runs import stay_offline
    from reproduction import cost
    from reproduction.tables import papers

    options, chip, tables = _options(arguments), chip_named(arguments.chip), papers().tables
    stay_offline()
    if arguments.table:
        check_choice("the table", arguments.table, tables)
    for one in [tables[arguments.table]] if arguments.table else tables.values():
        print(f"{cost.text(one, one.chosen(arguments.rows), options, chip)}\n")


def layers(arguments: argparse.Namespace) -> None:
    """Ranks paragraphs by the pooled token vectors of each layer of a model, without and with IDF."""
    from endx_jax.experiment.workdir import check_writable
    from endx_jax.parallel.environment import keep_programs
    from reproduction.layers import measure_layers, tables

    output = _local(arguments.output or f"runs/{pathlib.Path(arguments.model).name}/layers")
    check_writable(output, "--output")
    keep_programs()
    print(f"\n{tables(measure_layers(arguments.model, arguments.data, output))}\n\nresults are in {output}")


def pairs(arguments: argparse.Namespace) -> None:
    """Measures the teacher of an ENDX run, or the decoders of a VAE, on held-out pairs."""
    from reproduction.held_out import FILE, measure

    workdir = _local(arguments.workdir)
    print(f"{measure(workdir)}\nresults are in {workdir / FILE}")


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m reproduction", description=__doc__.partition(":")[0])
    tasks = parser.add_subparsers(required=True, metavar="TASK")
    added = {}
    for task in (table, figure, cost, layers, pairs):
        added[task] = tasks.add_parser(task.__name__, help=task.__doc__, description=task.__doc__)
        added[task].set_defaults(task=task)
    for task in (table, cost):
        added[task].add_argument("table", nargs="?", default="", help="table, such as endx-table2")
        about = "rows of the table [all]; of the table public, folders or names of models [all-MiniLM-L6-v2]"
        added[task].add_argument("rows", nargs="*", metavar="ROW", help=about)
    added[figure].add_argument("figure", help="figure, such as dong-figure2")
    added[figure].add_argument(
        "--run", action="append", default=[], metavar="NAME=WORKDIR", help="run with its label; repeatable"
    )
    for task in (table, figure, cost):
        for flag, about in (
            ("--data", "place of a data set, such as squad=path"),
            ("--weights", "folder of a pretrained model, by its name in recipes: google/t5-v1_1-base=path"),
        ):
            added[task].add_argument(flag, action="append", default=[], metavar="NAME=PLACE", help=about)
        added[task].add_argument("--seeds", type=int, default=0, help="runs per row [the paper's number; shortened: 1]")
        about = "shorten runs so that a table takes this long on two CPU cores"
        added[task].add_argument("--budget", type=float, default=0.0, metavar="MINUTES", help=about)
        added[task].add_argument("--output", default="runs/reproduce", help="folder of runs [%(default)s]")
    add_product_flag(added[table])
    added[cost].add_argument("--chip", default="A100", help="chip to estimate for [A100]")
    added[pairs].add_argument("workdir", help="workdir of a finished run of endx or vae")
    about = "pretrained folder or name, file of word vectors, or workdir"
    added[layers].add_argument("--model", required=True, help=about)
    added[layers].add_argument("--data", required=True, help="folder of SQuAD's train and dev files")
    added[layers].add_argument("--output", help="folder to write into [runs/MODEL/layers]")
    return parser


def _options(arguments: argparse.Namespace):
    from reproduction.runs import Options
    from reproduction.tables import papers

    require(min(arguments.seeds, arguments.budget) >= 0, "--seeds and --budget must not be negative")
    data = _named(arguments.data, "--data", {about.get("given", name) for name, about in papers().data.items()})
    weights = _named(arguments.weights, "--weights")
    return Options(_local(arguments.output), data, weights, arguments.seeds, arguments.budget)


def _local(folder: str) -> pathlib.Path:
    """Expands `~` in a folder of runs; raises EndxError if it is in a bucket."""
    require(not url_of(folder), f"{folder} is in a bucket: name a local folder")
    return expanded(folder)


def _named(given: list[str], flag: str, known: Collection[str] | None = None) -> dict[str, str]:
    """Parses NAME=PLACE arguments and expands `~`; raises EndxError for names that are not `known`."""
    found = dict(one.partition("=")[::2] for one in given)
    for name, place in found.items():
        require(bool(name and place), f"{flag}={name}: give NAME=PLACE, such as {flag}=squad=path/to/squad")
        if known is not None:
            check_choice(f"NAME of {flag}=NAME=PLACE", name, sorted(known))
    return {name: str(expanded(place)) if place.startswith("~") else place for name, place in found.items()}


def run(argv: list[str]) -> int:
    """Runs a task; returns the exit status: see `guarded`."""

    def work() -> None:
        arguments = parser().parse_args(argv)
        arguments.task(arguments)

    resumes = "with the runs that are not finished"
    return guarded("reproduction", f"python -m reproduction {shlex.join(argv)}", work, resumes=resumes)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
