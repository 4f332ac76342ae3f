"""`endx encode`: encodes a corpus of any size into an index; run the same command to resume.

Several processes that run the same command, on one machine or on several with a shared folder, divide the work.
"""

import argparse
import functools
import pathlib
import time

from endx_jax.cli.data_flags import naming_flags
from endx_jax.data.reqa import POOLS


def main(argv: list[str]) -> pathlib.Path:
    """Runs the verb with the arguments of the command line; returns the folder of the index."""
    arguments = _parser().parse_args(argv)

    from endx_jax.data.corpus import read_corpus
    from endx_jax.experiment.compilation_cache import keep_programs
    from endx_jax.experiment.workdir import check_writable
    from endx_jax.inference import load
    from endx_jax.inference.encode import Output
    from endx_jax.parallel.console import say, showing_progress
    from endx_jax.retrieval.corpus_encoding import Claims, begin, encoding_of, survey
    from endx_jax.settings import check_range

    check_range("--batch-size", arguments.batch_size, 1, 2**31 - 1)
    if arguments.output:
        check_writable(arguments.output, "--output")
    columns = {"text_column": arguments.text_column, "split": arguments.split}
    read = functools.partial(read_corpus, arguments.corpus, pool=arguments.pool, **columns)
    with naming_flags():
        found = survey(_bar(read(say=say), desc="reading the corpus"))
    empty = f", {found.empty:,} of them empty" if found.empty else ""
    say(f"{found.documents:,} documents in {arguments.corpus}{empty}")
    keep_programs()
    model = load(arguments.workdir or arguments.model)
    width, precision, size = arguments.truncate_dim, arguments.precision, arguments.shard_size
    encoding = encoding_of(model, arguments.corpus, found, width=width, precision=precision, shard_size=size)
    cached = f"~/.cache/endx_jax/indexes/{encoding.model['identity'][:16]}-{found.sha256[:16]}"
    folder = arguments.output or pathlib.Path(cached).expanduser()
    encode = functools.partial(
        model.encoder,
        model.params,
        "answer",
        batch_size=arguments.batch_size,
        progress=showing_progress(),
        output=Output(encoding.width, model.cosine, precision),
    )
    with Claims(folder) as claims:
        if begin(folder, claims, encoding):
            _run(folder, claims, encoding, read, encode)
        else:
            say(f"{folder} is finished; nothing to do")
    if model.encoder.cut:
        say(model.encoder.processors["answer"].describe_cut(model.encoder.cut, found.documents))
    return folder


def _run(folder: pathlib.Path, claims, encoding, read, encode) -> None:
    """Encodes the missing shards and reports progress."""
    from endx_jax.parallel.console import say
    from endx_jax.retrieval.corpus_encoding import documents_left, encode_shards

    total, left = encoding.corpus["documents"], documents_left(folder, encoding)
    if left < total:
        say(f"{total - left:,} of them are encoded already")
    say(f"encoding {left:,} documents; programs are compiled the first time only")
    started, count = time.monotonic(), 0
    with _bar(None, desc="encoding", total=total, initial=total - left) as progress:
        for shard in encode_shards(folder, claims, encoding, read, encode):
            count += shard.documents
            # Count the documents of other processes too.
            progress.update(total - documents_left(folder, encoding) - progress.n)
    seconds = time.monotonic() - started
    say(f"encoded {count:,} documents in {seconds:,.0f} s, {count / seconds:,.0f} a second")
    left = documents_left(folder, encoding)
    if left:
        say(f"other processes are encoding the last {left:,} documents; then the index in {folder} is complete")
    else:
        say(f"the index is in {folder}")


def _bar(items, **options):
    import tqdm

    from endx_jax.parallel.console import showing_progress

    return tqdm.tqdm(items, unit="text", disable=not showing_progress(), leave=False, **options)


def _parser() -> argparse.ArgumentParser:
    from endx_jax.retrieval.shards import PRECISIONS

    parser = argparse.ArgumentParser(prog="endx encode", description=__doc__.partition(": ")[2])
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--workdir", type=pathlib.Path, help="workdir of a run, whose best checkpoint is used")
    source.add_argument("--model", help="pretrained folder or name")
    parser.add_argument(
        "--corpus",
        required=True,
        help="folder of documents (.md, .txt, .html, .pdf), BEIR, MS MARCO, DPR or save_to_disk; .parquet or .arrow "
        "file; or .jsonl, .json, .csv, .tsv or .txt file, also with .gz; SQuAD's .json too",
    )
    parser.add_argument("--output", type=pathlib.Path, help="folder of the index [one in ~/.cache/endx_jax/indexes]")
    parser.add_argument(
        "--precision", choices=PRECISIONS, default="float32", help="data type of the embeddings [float32]"
    )
    parser.add_argument("--truncate-dim", type=int, metavar="N", help="keep the first N dimensions [all]")
    parser.add_argument(
        "--shard-size",
        type=int,
        default=32768,
        metavar="N",
        help="documents per shard; an interrupt loses at most one shard [32768]",
    )
    parser.add_argument(
        "--batch-size", type=int, default=64, metavar="N", help="texts of maximum length encoded together [64]"
    )
    parser.add_argument(
        "--pool", choices=POOLS, default="", help="sentences of reading-comprehension data [paragraphs]"
    )
    parser.add_argument("--split", help="split of a save_to_disk folder [its only one]")
    parser.add_argument("--text-column", default="text", help="text column of JSON, CSV, TSV and Arrow [text]")
    return parser
