"""`endx publish`: copies an index to a vector database, Milvus, on a cluster or in a folder of this machine.

The server's token, such as user:password, is read from the environment variable MILVUS_TOKEN.
"""

import argparse
import logging
import os
import pathlib

from endx_jax.retrieval.milvus import AUTO, INDEX_TYPES


def main(argv: list[str]) -> None:
    """Runs the verb with the arguments of the command line."""
    arguments = _parser().parse_args(argv)

    from endx_jax.experiment.console import say, showing_progress
    from endx_jax.retrieval.index import Index
    from endx_jax.retrieval.milvus import LARGEST, Collection

    for library in ("pymilvus", "milvus_lite", "grpc"):  # they log tracebacks of what is said in a line here
        logging.getLogger(library).setLevel(logging.CRITICAL)
    index = Index(arguments.index)
    with Collection(arguments.to, arguments.collection, token=os.environ.get("MILVUS_TOKEN", "")) as collection:
        done = collection.publish(index, index_type=arguments.index_type, progress=showing_progress())
    say(f"{done.documents:,} documents of {arguments.index} are in collection {collection.name} at {arguments.to}")
    if done.removed:
        say(f"{done.removed:,} that were deleted from the index are deleted there too")
    if done.cut:
        say(f"{done.cut:,} texts are longer than the {LARGEST:,} bytes that Milvus shows of a text")
    if done.others:
        say(f"the collection holds {done.others:,} other documents")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="endx publish",
        description=__doc__.partition(": ")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--index", type=pathlib.Path, required=True, help="folder of an index, as endx encode makes it")
    parser.add_argument("--to", required=True, metavar="ADDRESS", help="http://HOST:PORT, or a path that ends in .db")
    parser.add_argument("--collection", required=True, metavar="NAME", help="made where it is missing")
    parser.add_argument(
        "--index-type", choices=INDEX_TYPES, default=AUTO, help=f"the server's choice, or exact search [{AUTO}]"
    )
    return parser
