"""`endx encode`: encodes a corpus of any size into an index; run the same command to resume.

Several processes or machines divide the work by --shard=1/N to N/N; --join makes one index of their files.
"""

import argparse
import copy
import dataclasses
import functools
import pathlib
import re
import time

from etils import epath

from endx_jax.buckets import local_copy
from endx_jax.cli.data_flags import add_corpus_flags, add_language_flag, add_product_flag, corpus_columns
from endx_jax.data.reqa import POOLS
from endx_jax.errors import EndxError
from endx_jax.files import expanded
from endx_jax.settings import check


def main(argv: list[str]) -> pathlib.Path:
    """Runs the verb with the arguments of the command line; returns the file of the index."""
    arguments = _parser().parse_args(argv)
    if arguments.join:
        return _join(arguments)
    check(bool(arguments.corpus), "nothing to encode: set --corpus=FILE or --corpus=FOLDER")

    from endx_jax.data.corpus import read_corpus
    from endx_jax.experiment.compilation_cache import keep_programs
    from endx_jax.experiment.workdir import check_writable, read_config
    from endx_jax.inference import load
    from endx_jax.inference.encode import Output
    from endx_jax.parallel.console import say, showing_progress
    from endx_jax.retrieval.corpus_encoding import Reuse, begin, documents_of, encode_corpus, encoding_of, survey
    from endx_jax.retrieval.index import ENCODED
    from endx_jax.settings import check_range

    check_range("--batch-size", arguments.batch_size, 1, 2**31 - 1)
    shard = _shard(arguments.shard)
    check(bool(arguments.output) or shard[1] == 1, "--shard needs --output=FILE, a file for each shard")
    if arguments.output:
        check_writable(arguments.output.parent, "--output")
    columns = corpus_columns(arguments)
    read = functools.partial(read_corpus, arguments.corpus, pool=arguments.pool, split=arguments.split, **columns)
    corpus = survey(_bar(read(say=say), desc="reading the corpus"))
    language = arguments.language or (read_config(arguments.workdir).data.language if arguments.workdir else "")
    corpus = dataclasses.replace(corpus, language=language or corpus.language)
    empty = f", {corpus.empty:,} of them empty" if corpus.empty else ""
    known = f" with {corpus.questions:,} known questions" if corpus.questions else ""
    say(f"{corpus.documents:,} documents{known} in {arguments.corpus}{empty}")
    keep_programs()
    model = load(arguments.workdir or arguments.model, product_dtype=arguments.product_dtype)
    for line in model.encoder.processors["answer"].tokenizer.describe_unfit(corpus.first, model.name):
        say(line)
    width, precision = arguments.truncate_dim, arguments.precision
    info = encoding_of(model, arguments.corpus, corpus, width=width, precision=precision, shard=shard)
    cached = f"{ENCODED}/{model.identity[:16]}-{corpus.sha256[:16]}.sqlite"
    path = arguments.output or expanded(cached)
    output = Output(info.width, model.cosine, precision)
    options = {"batch_size": arguments.batch_size, "progress": showing_progress(), "output": output}
    encode = functools.partial(model.encoder, model.params, "answer", **options)
    # The copy has its own count of truncated texts, so that the model's encoder counts documents only.
    encode_question = functools.partial(copy.copy(model.encoder), model.params, "question", **options)
    reuse = Reuse(local_copy(arguments.reuse), info) if arguments.reuse else None
    total, done = len(documents_of(info)), begin(path, info)
    if done == total:
        say(f"{path} is their index already; nothing to encode")
        return path
    if done:
        say(f"{done:,} of them are encoded already")
    say(f"encoding {total - done:,} documents; programs are compiled the first time only")
    started, encoded = time.monotonic(), 0
    with _bar(None, desc="encoding", total=total, initial=done) as progress:
        for count, new in encode_corpus(path, info, read(), encode, encode_question=encode_question, reuse=reuse):
            encoded += new
            progress.update(count)
    seconds = time.monotonic() - started
    reused = f", took over {total - done - encoded:,} of {arguments.reuse}" if reuse else ""
    say(f"encoded {encoded:,} documents{reused} in {seconds:,.0f} s, {(total - done) / seconds:,.0f} a second")
    say(f"the index is {path}")
    if model.encoder.cut:
        say(model.encoder.processors["answer"].describe_cut(model.encoder.cut, encoded))
    return path


def _join(arguments: argparse.Namespace) -> pathlib.Path:
    from endx_jax.parallel.console import say
    from endx_jax.retrieval.corpus_encoding import join

    check(bool(arguments.output), "--join needs --output=FILE, the file of the joined index")
    count = join(arguments.output, list(map(local_copy, arguments.join)))
    say(f"{count:,} documents of {len(arguments.join)} shards; the index is {arguments.output}")
    return arguments.output


def _shard(text: str) -> tuple[int, int]:
    """Parses `I/N`."""
    numbers = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if not numbers:
        raise EndxError(f"--shard={text}: give the number of the shard and of all shards, such as 1/8")
    return int(numbers[1]), int(numbers[2])


def _bar(items, **options):
    import tqdm

    from endx_jax.parallel.console import showing_progress

    return tqdm.tqdm(items, unit="text", disable=not showing_progress(), leave=False, **options)


def _parser() -> argparse.ArgumentParser:
    from endx_jax.retrieval.index_file import PRECISIONS

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
    parser.add_argument("--split", help="split of a save_to_disk folder [its only one]")
    add_corpus_flags(parser)
    add_language_flag(parser)
    add_product_flag(parser)
    return parser
