"""Docstrings found once: kept until a source file, or the code that reads them, changes."""

import hashlib
import json
import os
import pathlib
import sys
from collections.abc import Callable, Iterable

from endx_jax.data import docstring_text
from endx_jax.data.cache_folder import CacheFolder

# (name, question, answer)
Found = tuple[str, str, str]


def sources_key(sources: Iterable[tuple[str, tuple[str, ...]]], *code: str) -> str:
    """sha256, in hexadecimal, of source files as the file system describes them and of the code that reads them.

    Args:
      sources: (path, public name in parts) of each.
      *code: paths of the modules that read them.
    """
    digest = hashlib.sha256(sys.version.encode())
    for file in (*code, docstring_text.__file__):
        digest.update(hashlib.sha256(pathlib.Path(file).read_bytes()).digest())
    for path, name in sources:
        digest.update(repr((path, name, _status(path))).encode())
    return digest.hexdigest()


def _status(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except OSError:  # a link to nowhere: listed, but never read
        return 0, 0
    return status.st_size, status.st_mtime_ns


def kept(folder: CacheFolder, key: str, find: Callable[[], Iterable[Found]]) -> list[Found]:
    """What `find` gives, from the folder where it is there and whole, else found and kept."""
    name = f"docstrings-{key}.json"
    try:
        checksum, _, body = folder.path(name).read_bytes().partition(b"\n")
    except OSError:
        checksum, body = b"", b""
    if checksum and checksum == _checksum(body):
        return [(name, question, answer) for name, question, answer in json.loads(body)]
    found = list(find())
    body = json.dumps(found).encode()
    folder.write(name, lambda stream: stream.write(_checksum(body) + b"\n" + body))
    return found


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode()
