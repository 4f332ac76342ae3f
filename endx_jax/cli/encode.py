"""`endx encode`: encodes a corpus of any size into an index; run the same command to resume.

Several processes or machines divide the work by --shard=1/N to N/N; --join makes one index of their files.
"""

import argparse
import pathlib
import re

from etils import epath

from endx_jax.buckets import local_copy
from endx_jax.cli.data_flags import add_corpus_flags, add_language_flag, add_product_flag, corpus_options
from endx_jax.data.sets.paragraphs import POOLS
from endx_jax.errors import EndxError, counted
from endx_jax.settings import require


def main(argv: list[str]) -> None:
    """Runs the verb with the arguments of the command line."""
    arguments = _parser().parse_args(argv)
    if arguments.join:
        return _join(arguments)
    require(bool(arguments.corpus), "nothing to encode: set --corpus=FILE or --corpus=FOLDER")

    from endx_jax.experiment.workdir import check_writable, read_config
    from endx_jax.index.corpus_encoding import Encoding, encode_corpus
    from endx_jax.parallel.environment import keep_programs

    shard = _shard(arguments.shard)
    if arguments.output:
        check_writable(arguments.output.parent, "--output")
    language = arguments.language or (read_config(arguments.workdir).data.language if arguments.workdir else "")
    keep_programs()
    encoding = Encoding(arguments.precision, arguments.truncate_dim, arguments.batch_size)
    encode_corpus(
        arguments.workdir or arguments.model,
        arguments.corpus,
        arguments.output,
        encoding,
        language=language,
        shard=shard,
        reuse=arguments.reuse,
        pool=arguments.pool,
        **corpus_options(arguments),
    )


def _join(arguments: argparse.Namespace) -> None:
    from endx_jax.index.shards import join_shards
    from endx_jax.parallel.console import say

    require(bool(arguments.output), "--join needs --output=FILE, the file of the joined index")
    count = join_shards(arguments.output, list(map(local_copy, arguments.join)))
    say(f"{counted(count, 'document')} of {len(arguments.join)} shards; the index is {arguments.output}")


def _shard(text: str) -> tuple[int, int]:
    """Parses `I/N`."""
    numbers = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if not numbers:
        raise EndxError(f"--shard={text}: give the number of the shard and of all shards, such as 1/8")
    return int(numbers[1]), int(numbers[2])


def _parser() -> argparse.ArgumentParser:
    from endx_jax.index.index_file import PRECISIONS

    parser = argparse.ArgumentParser(prog="endx encode", description=__doc__.partition(": ")[2])
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--workdir", type=epath.Path, help="workdir of a run, whose best checkpoint is used")
    source.add_argument("--model", help="pretrained folder or name")
    source.add_argument(
        "--join",
        nargs="+",
        metavar="FILE",
        help="join the indexes of all shards, in place of encoding",
    )
    parser.add_argument(
        "--corpus",
        help="folder of documents (.md, .rst, .txt, .html, .pdf), BEIR, MS MARCO, DPR or save_to_disk; .parquet or "
        ".arrow file; or .jsonl, .json, .csv, .tsv or .txt file, also with .gz; SQuAD's .json too",
    )
    parser.add_argument("--output", type=pathlib.Path, help="file of the index [one in ~/.cache/endx_jax/indexes]")
    parser.add_argument(
        "--precision", choices=PRECISIONS, default="float32", help="data type of the embeddings [float32]"
    )
    parser.add_argument("--truncate-dim", type=int, metavar="N", help="keep the first N dimensions [all]")
    parser.add_argument(
        "--shard", default="1/1", metavar="I/N", help="encode the I-th of N parts of the corpus, from 1 [all of it]"
    )
    parser.add_argument(
        "--reuse",
        metavar="OLD",
        help="older index of the same model, whose embeddings of unchanged texts are taken over",
    )
    parser.add_argument(
        "--batch-size", type=int, default=64, metavar="N", help="texts of maximum length encoded together [64]"
    )
    parser.add_argument(
        "--pool", choices=POOLS, default="", help="sentences of reading-comprehension data [paragraphs]"
    )
    add_corpus_flags(parser)
    add_language_flag(parser)
    add_product_flag(parser)
    return parser
