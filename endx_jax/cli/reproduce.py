"""`endx reproduce`: the papers' tables, a row at a time: what was expected, what was got, and why a row was skipped.

Interrupted and given again, the same command goes on. Nothing is printed that was not computed.
"""

import argparse
import pathlib


def main(argv: list[str]) -> None:
    """Runs the verb with the arguments of the command line."""
    arguments = _parser().parse_args(argv)

    from endx_jax.errors import EndxError, nearest
    from endx_jax.experiment.console import say
    from endx_jax.experiment.workdir import check_writable
    from endx_jax.reproduction import page, report
    from endx_jax.reproduction.plan import Options
    from endx_jax.reproduction.table import PaperFigure, Table, papers

    if arguments.seeds < 0 or arguments.budget < 0:
        raise EndxError("--seeds and --budget must not be negative")
    options = Options(
        output=arguments.output,
        data=_named(arguments.data, "--data", papers().data),
        weights=_named(arguments.weights, "--weights"),
        seeds=arguments.seeds,
        budget=arguments.budget,
    )
    if arguments.cost:
        _say_costs(arguments, options)
        return
    check_writable(options.output, "--output")
    known: dict[str, Table | PaperFigure] = {**papers().tables, **papers().figures}
    if arguments.table and arguments.table not in known:
        close = nearest(arguments.table, known)
        raise EndxError(f"unknown table {arguments.table!r}{close}; `endx reproduce` without one lists all")
    if arguments.table in papers().figures:
        from endx_jax.reproduction.figures import draw

        say(f"drawn: {draw(papers().figures[arguments.table], options)}")
    elif arguments.table:
        from endx_jax.reproduction.run import reproduce

        table = papers().tables[arguments.table]
        outcomes = reproduce(table, table.chosen(arguments.rows), options)
        page.keep(table, outcomes, options)
        say(f"\n{report.text(table, outcomes, options.budget)}")
    elif not arguments.page:
        say("\n".join(f"{name:<15} {one.title} ({one.paper})" for name, one in known.items()))
    if arguments.page:
        page.write(arguments.page, options.output)
        say(f"wrote {arguments.page}")


def _say_costs(arguments: argparse.Namespace, options) -> None:
    """Plans the trained rows of one table, or of all."""
    from endx_jax.errors import EndxError, nearest
    from endx_jax.experiment.console import say
    from endx_jax.planning.chips import chip_named
    from endx_jax.planning.subject import stay_offline
    from endx_jax.reproduction import cost
    from endx_jax.reproduction.table import papers

    stay_offline()
    chip, tables = chip_named(arguments.cost), papers().tables
    if arguments.table and arguments.table not in tables:
        raise EndxError(f"unknown table {arguments.table!r}{nearest(arguments.table, tables)}; --cost is of tables")
    cost_of = cost.Costs(options, chip)
    for table in [tables[arguments.table]] if arguments.table else tables.values():
        found = [cost_of(row) for row in table.chosen(arguments.rows if arguments.table else [])]
        say(f"{cost.text(table, found, chip)}\n")


def _named(given: list[str], flag: str, known=None) -> dict[str, str]:
    """NAME=PLACE as a dictionary."""
    from endx_jax.errors import EndxError, nearest

    found = dict(one.partition("=")[::2] for one in given)
    for name, place in found.items():
        if not (name and place):
            raise EndxError(f"{flag}={name}: give NAME=PLACE, such as {flag}=squad=path/to/squad")
        if known is not None and name not in known:
            raise EndxError(f"{flag}={name}=...: unknown name{nearest(name, known)}; the names are {', '.join(known)}")
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="endx reproduce", description=__doc__.partition(": ")[2])
    parser.add_argument("table", nargs="?", default="", help="such as endx-table2 or dong-figure2; without one: a list")
    parser.add_argument("rows", nargs="*", metavar="ROW", help="of the table [all]")
    parser.add_argument(
        "--data", action="append", default=[], metavar="NAME=PATH", help="where data are, such as squad=path/to/squad"
    )
    parser.add_argument(
        "--weights",
        action="append",
        default=[],
        metavar="NAME=PLACE",
        help="where a pretrained model is, by the name that recipes have for it, such as google/t5-v1_1-base=path",
    )
    parser.add_argument("--seeds", type=int, default=0, help="runs of each row [the paper's; of shortened ones 1]")
    parser.add_argument(
        "--budget", type=float, default=0.0, metavar="MINUTES", help="of two CPU cores: shortened runs, marked as such"
    )
    parser.add_argument(
        "--cost", nargs="?", const="A100", default="", metavar="CHIP", help="only say what it would take there [A100]"
    )
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("runs/reproduce"), help="[runs/reproduce]")
    parser.add_argument("--page", type=pathlib.Path, metavar="FILE.md", help="write a page of all that is in --output")
    return parser
