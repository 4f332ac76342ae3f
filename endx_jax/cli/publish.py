"""`endx publish`: copies an index to Milvus, on a cluster or in a local file.

The server's token, such as user:password, is read from the environment variable MILVUS_TOKEN.
"""

import logging
import os

from endx_jax.cli.parser import main_of


def publish(index: str, to: str, collection: str) -> None:
    """Copies the documents of an index, and logs what was copied.

    Args:
      index: file of an index, as written by endx encode
      to: http://HOST:PORT, or a path that ends in .db
      collection: collection, created if it is missing
    """
    from endx_jax.errors import counted
    from endx_jax.index import milvus
    from endx_jax.index.index import Index
    from endx_jax.parallel.console import say, showing_progress

    # These libraries log tracebacks of errors that are reported here as one line.
    for library in ("pymilvus", "milvus_lite", "grpc"):
        logging.getLogger(library).setLevel(logging.CRITICAL)
    opened, token = Index(index), os.environ.get("MILVUS_TOKEN", "")
    done = milvus.publish(opened, to, collection, token=token, progress=showing_progress())
    texts = counted(done.documents, "passage" if done.documents > len(opened) else "document")
    say(f"copied {texts} of {index} to collection {collection} at {to}")
    if opened.snapshot.known:
        say(f"{len(opened.snapshot.known):,} known questions are not copied; the collection is searched without them")
    if done.removed:
        say(f"deleted {counted(done.removed, 'document')} from the collection that were deleted from the index")
    if done.cut:
        say(f"cut {done.cut:,} texts to {milvus.LARGEST:,} bytes, the limit of Milvus")
    if done.others:
        say(f"the collection contains {done.others:,} other texts")


main = main_of(__doc__, publish)
