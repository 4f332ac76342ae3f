"""`endx publish`: copies an index to Milvus, on a cluster or in a local file.

The server's token, such as user:password, is read from the environment variable MILVUS_TOKEN.
"""

import argparse
import logging
import os
import pathlib


def main(argv: list[str]) -> None:
    """Runs the verb with the arguments of the command line."""
    arguments = _parser().parse_args(argv)

    from endx_jax.errors import counted
    from endx_jax.index.index import Index
    from endx_jax.index.milvus import LARGEST, publish
    from endx_jax.parallel.console import say, showing_progress

    # These libraries log tracebacks of errors that are reported here as one line.
    for library in ("pymilvus", "milvus_lite", "grpc"):
        logging.getLogger(library).setLevel(logging.CRITICAL)
    index = Index(arguments.index)
    token = os.environ.get("MILVUS_TOKEN", "")
    done = publish(index, arguments.to, arguments.collection, token=token, progress=showing_progress())
    say(f"{done.documents:,} documents of {arguments.index} are in collection {arguments.collection} at {arguments.to}")
    if index.snapshot.known:
        say(f"{len(index.snapshot.known):,} known questions are not copied; the collection is searched without them")
    if done.removed:
        say(f"deleted {counted(done.removed, 'document')} from the collection that were deleted from the index")
    if done.cut:
        say(f"cut {done.cut:,} texts to {LARGEST:,} bytes, the limit of Milvus")
    if done.others:
        say(f"the collection contains {done.others:,} other documents")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="endx publish",
        description=__doc__.partition(": ")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--index", type=pathlib.Path, required=True, help="file of an index, as written by endx encode")
    parser.add_argument("--to", required=True, metavar="ADDRESS", help="http://HOST:PORT, or a path that ends in .db")
    parser.add_argument("--collection", required=True, metavar="NAME", help="collection, created if it is missing")
    return parser
