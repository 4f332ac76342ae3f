"""`endx compare`: tests whether one system is better than another, question by question."""

import argparse
import json
import pathlib

from endx_jax.errors import printable
from endx_jax.settings import require


def main(argv: list[str]) -> None:
    """Runs the verb with the arguments of the command line."""
    arguments = _parser().parse_args(argv)

    from endx_jax.experiment.comparison import changed_settings, compare, read_pair
    from endx_jax.files import write_text

    systems = arguments.systems.split(",")
    valid = len(systems) <= 2 and all(systems)
    require(valid, f"--systems={arguments.systems}: give one name, or two names separated by a comma")
    runs = (arguments.first, arguments.second)
    first, second, notes = read_pair(runs, (systems[0], systems[-1]), arguments.pool, arguments.qrels)
    comparison = compare(first, second, clustered=arguments.clusters)
    changed = changed_settings(*runs)
    print(printable("\n".join([comparison.table(), *notes])))
    if changed:
        print(f"The settings of the runs differ: {printable('; '.join(changed))}.")
    if arguments.output:
        write_text(arguments.output, json.dumps({**comparison.as_dict(), "settings": changed}, indent=1) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="endx compare", description=__doc__.partition(": ")[2])
    what = "workdir, folder that endx evaluate wrote, .per_question.jsonl file, or TREC run of any tool"
    parser.add_argument("first", metavar="RUN_A", type=pathlib.Path, help=what)
    parser.add_argument(
        "second", metavar="RUN_B", type=pathlib.Path, help="another run, or the same one with two --systems"
    )
    parser.add_argument(
        "--systems", default="trained", metavar="A[,B]", help="system of each run, such as bm25,trained [trained]"
    )
    parser.add_argument("--pool", default="", help="pool, such as sentences or answers>=8 [each run's primary pool]")
    judged = "TREC file of right candidates, to compare TREC runs [qrels.trec beside one of the runs]"
    parser.add_argument("--qrels", type=pathlib.Path, metavar="FILE", help=judged)
    parser.add_argument(
        "--clusters",
        action="store_true",
        help="resample groups of questions, such as articles, which are not independent within [single questions]",
    )
    parser.add_argument("--output", type=pathlib.Path, metavar="FILE", help="file for the comparison as JSON")
    return parser
