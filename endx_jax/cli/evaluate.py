"""`endx evaluate`: ranks a data set with a model and with BM25, and writes metrics, TREC runs and an index of the pool.

Of a suite, a folder of BEIR folders such as NanoBEIR, each set is ranked; the tables also have the means over sets.

Several processes, as started by `launch/local.py`, divide the encoding; the first one writes the results.

`--index` ranks all documents of an index instead, for data that name right documents by id or contain answer strings.
"""

import argparse
import functools
import pathlib

from etils import epath

from endx_jax.cli.data_flags import add_data_flags, add_product_flag, add_rerank_flag, data_settings
from endx_jax.data.settings import POOLS
from endx_jax.settings import require


def main(argv: list[str]) -> None:
    """Runs the verb with the arguments of the command line."""
    arguments = _parser().parse_args(argv)

    from endx_jax.parallel import agreement, distributed

    distributed.initialize()
    if arguments.index:
        agreement.on_primary(lambda: _evaluate_index(arguments), "index-evaluated")
        return

    from endx_jax.experiment.evaluation import evaluate
    from endx_jax.parallel.console import say

    output = arguments.output or functools.partial(_default_output, arguments)
    names = ("model", "data", "workdir", "pool", "split", "rerank", "top", "min_questions", "reverse")
    options = {name: getattr(arguments, name) for name in names}
    results = evaluate(output=output, **options, **data_settings(arguments))
    say(f"\n{results}\nresults are in {arguments.output or output(results.dataset)}")


def _evaluate_index(arguments: argparse.Namespace) -> None:
    from endx_jax.experiment.evaluation import evaluate_index
    from endx_jax.hub import local_path
    from endx_jax.parallel.console import say

    require(bool(arguments.data), "--index needs --data with questions and their right documents or answers")
    require(not (arguments.rerank or arguments.reverse), "--rerank and --reverse can't be used with --index")
    data, index = local_path(arguments.data), arguments.index
    name = pathlib.Path(data).name.partition(".")[0]
    output = arguments.output or index.parent / f"{index.stem}-evaluation" / name
    options = {name: getattr(arguments, name) for name in ("model", "workdir", "pool", "split")}
    results = evaluate_index(index, data, output=output, **options, **data_settings(arguments))
    say(f"\n{results}\n\nresults are in {output}")


def _default_output(arguments: argparse.Namespace, dataset: str) -> pathlib.Path:
    from endx_jax.experiment.workdir import EVALUATION

    name = "-".join(filter(None, (pathlib.Path(dataset).name.partition(".")[0], arguments.pool)))
    return (arguments.workdir or pathlib.Path("runs") / pathlib.Path(arguments.model).name) / EVALUATION / name


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="endx evaluate", description=__doc__.partition(": ")[2])
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--workdir", type=epath.Path, help="workdir of a run, whose best checkpoint is used")
    source.add_argument("--model", help="pretrained folder or name")
    parser.add_argument(
        "--index",
        type=epath.Path,
        metavar="DIR",
        help="index whose documents are ranked, by the model that encoded it; needs --data",
    )
    parser.add_argument(
        "--data", help="file or folder of any supported format, or suite of BEIR folders [the run's test split]"
    )
    parser.add_argument(
        "--pool",
        choices=POOLS,
        help="retrieval unit of reading-comprehension data, as `data.pool` [the run's; with --model whole paragraphs, "
        "equal questions merged]",
    )
    add_rerank_flag(parser, "that re-ranks the best candidates")
    parser.add_argument(
        "--top", type=int, default=20, metavar="N", help="number of candidates that --rerank re-ranks, 0: all [20]"
    )
    parser.add_argument(
        "--min-questions",
        type=int,
        nargs="*",
        default=[8],
        metavar="N",
        help="report questions whose answer has at least N questions separately as well [8]",
    )
    parser.add_argument("--reverse", action="store_true", help="rank the questions for each answer as well (RR)")
    add_data_flags(parser, split="test, or the only one of a BEIR folder")
    parser.set_defaults(split=None)
    add_product_flag(parser)
    parser.add_argument("--output", type=pathlib.Path, help="output folder [evaluation/NAME-POOL in WORKDIR]")
    return parser
