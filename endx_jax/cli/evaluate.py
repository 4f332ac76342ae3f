"""`endx evaluate`: ranks a data set with a model and with BM25, and writes metrics, TREC runs and an index of the pool.

Of a suite, a folder of BEIR folders such as NanoBEIR, each set is ranked; the tables also have the means over sets.

Several processes, as started by `launch/local.py`, divide the encoding; the first one writes the results.

`--index` ranks all documents of an index instead, for data that name right documents by id,
hold their texts, or contain answer strings.
"""

import argparse
import os
import re

from etils import epath

from endx_jax.cli.data_flags import add_data_flags, add_product_flag
from endx_jax.cli.parser import parser_of
from endx_jax.experiment.evaluate import check_arguments, evaluate
from endx_jax.files import last_name


def main(argv: list[str]) -> None:
    """Runs the verb with the arguments of the command line."""
    arguments = parser_of(__doc__, evaluate, add_data_flags, add_product_flag).parse_args(argv)
    check_arguments(**vars(arguments))

    from endx_jax.parallel import distributed
    from endx_jax.parallel.console import say

    distributed.initialize()
    arguments.output = arguments.output or _default_output(arguments)
    results = evaluate(**vars(arguments))
    if results:
        say(f"\n{results}\nresults are in {arguments.output}")


def _default_output(arguments: argparse.Namespace) -> epath.Path | None:
    """Returns evaluation/NAME-POOL in the workdir or in a folder of the model, or a folder beside the index."""
    from endx_jax.experiment.workdir import EVALUATION, TEST, read_config

    data = arguments.data
    if not data and arguments.workdir and not arguments.model:
        settings = read_config(epath.Path(arguments.workdir)).data
        data = settings.test_path or settings.path
    if not data or not (arguments.index or arguments.workdir or arguments.model):
        return None  # which `evaluate` refuses
    name = _without_endings(data)
    if arguments.index:
        index = epath.Path(arguments.index)
        return index.parent / f"{_without_endings(index)}-evaluation" / name
    folder = arguments.workdir or f"runs/{last_name(arguments.model)}"
    output = "-".join(filter(None, (name, arguments.pool)))
    # A run keeps its own rankings in TEST.
    return epath.Path(folder) / EVALUATION / (f"{TEST}-data" if output == TEST else output)


def _without_endings(path: str | os.PathLike) -> str:
    """Returns the name of a file or folder without endings like `.jsonl.gz`; `.5` of `lr3.5` is none."""
    return re.sub(r"(?i)(\.(jsonl?|csv|tsv|txt|parquet|arrow|feather|ya?ml|sqlite))?(\.gz)?$", "", last_name(path))
