"""A corpus of any size, encoded to an index in shards: by one process or several, at one go or many."""

import dataclasses
import hashlib
import itertools
import json
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from endx_jax.data.documents import Document
from endx_jax.errors import EndxError
from endx_jax.files import write_text
from endx_jax.retrieval.claims import Claims
from endx_jax.retrieval.quantize import Quantized
from endx_jax.retrieval.shards import MANIFEST, Manifest, Shard, shard_files, write_manifest, write_shard

ENCODING = "encoding.json"


@dataclasses.dataclass(frozen=True)
class Encoding:
    """What is encoded and how: all that decides about the shards, and what `encoding.json` holds.

    Attributes:
      model: `name` and `identity` (see `retrieval.identity`).
      corpus: `path`, `documents` (their number) and `sha256` of their contents.
      side: whose tower encodes, `document` or `query`.
      width: E of the embeddings.
      precision: float32, float16 or int8.
      metric: of the index.
      shard_size: documents of each shard but the last.
    """

    model: Mapping[str, str]
    corpus: Mapping[str, Any]
    side: str
    width: int
    precision: str
    metric: str
    shard_size: int

    def shards(self) -> list[Shard]:
        """All shards, in order."""
        count, size = self.corpus["documents"], self.shard_size
        return [Shard(f"{n:05d}", min(size, count - start)) for n, start in enumerate(range(0, count, size))]

    def manifest(self) -> Manifest:
        """That of the whole index."""
        return Manifest(
            width=self.width,
            precision=self.precision,
            metric=self.metric,
            model=self.model,
            shards=tuple(self.shards()),
            corpus={**self.corpus, "side": self.side},
        )

    def differences(self, other: "Encoding") -> list[str]:
        """How `other` would make another index: a phrase for each difference; names and paths are none."""
        found = []
        for what, key in (("model", "identity"), ("corpus", "sha256")):
            mine, its = getattr(self, what), getattr(other, what)
            if mine[key] != its[key]:
                found.append(f"{what} {_named(mine, key)} and not {_named(its, key)}")
        for name in ("side", "width", "precision", "metric", "shard_size"):
            mine, its = getattr(self, name), getattr(other, name)
            if mine != its:
                found.append(f"{name.replace('_', ' ')} {mine} and not {its}")
        return found


def _named(what: Mapping[str, Any], key: str) -> str:
    count = f"{what['documents']:,} documents, " if "documents" in what else ""
    return f"{what.get('name', what.get('path'))} ({count}{key} {what[key][:12]})"


@dataclasses.dataclass(frozen=True)
class Survey:
    """What one pass over a corpus finds.

    Attributes:
      documents: how many there are.
      empty: how many of them have no text.
      sha256: of their ids, texts and metadata, in order.
    """

    documents: int
    empty: int
    sha256: str


def survey(documents: Iterable[Document]) -> Survey:
    """Goes over a corpus, which finds whatever is broken in it before anything is encoded."""
    digest, count, empty = hashlib.sha256(), 0, 0
    for document in documents:
        contents = [document.id, document.text, sorted(document.metadata.items())]
        digest.update(json.dumps(contents, ensure_ascii=False).encode() + b"\n")
        count += 1
        empty += not document.text
    return Survey(count, empty, digest.hexdigest())


def begin(folder: pathlib.Path, claims: Claims, encoding: Encoding) -> bool:
    """Makes a folder the place of an encoding, or finds that it is already.

    Returns:
      Whether there is anything left to do.

    Raises:
      EndxError: the folder holds something else; the message names each difference.
    """
    path = folder / ENCODING
    with claims.of_all():
        _clear(folder, [ENCODING])
        if not path.exists():
            if (folder / MANIFEST).exists():
                raise EndxError(f"{folder} holds an index that `endx encode` did not make; choose another --output")
            write_text(path, json.dumps(dataclasses.asdict(encoding), indent=1, ensure_ascii=False) + "\n")
    differences = _read(path).differences(encoding)
    if differences:
        raise EndxError(
            f"{folder} belongs to another encoding: it is of {'; of '.join(differences)}. Choose another --output, or "
            "repeat what began it"
        )
    return not (folder / MANIFEST).exists()


def _read(path: pathlib.Path) -> Encoding:
    try:
        return Encoding(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as failure:
        raise EndxError(f"{path} can't be read: {failure}; choose another --output") from None


def encode_shards(
    folder: pathlib.Path,
    claims: Claims,
    encoding: Encoding,
    read: Callable[[], Iterable[Document]],
    encode: Callable[[Sequence[str]], np.ndarray | Quantized],
) -> Iterator[Shard]:
    """Encodes the shards that are missing and that no other process works on; yields each when it is written.

    A shard is encoded by itself, so who does it, and what was there before, changes nothing in it. The process that
    finds all shards whole writes the manifest, with which the folder becomes an index. Where other processes are still
    at work at the end, the last of them does.

    Args:
      folder: of the index, which `begin` has made this encoding's.
      claims: of that folder.
      encoding: what is to be made.
      read: begins the corpus anew; it is read on from shard to shard.
      encode: the embeddings of texts, of the encoding's width and precision.

    Raises:
      EndxError: the corpus holds fewer documents than before, or the folder can't be written.
    """
    documents = _Documents(read, encoding)
    while True:
        idle = True
        for number, shard in _missing(folder, encoding):
            with claims.of(number) as mine:
                if not mine or _is_whole(folder, shard, encoding.precision):
                    continue
                _clear(folder, shard_files(shard.name, encoding.precision))
                part = documents.of(number, shard)
                write_shard(folder, number, encode([document.text for document in part]), part)
            idle = False
            yield shard
        if idle:
            break
    if not _missing(folder, encoding):
        with claims.of_all():
            _clear(folder, [MANIFEST])
            if not (folder / MANIFEST).exists():
                write_manifest(folder, _read(folder / ENCODING).manifest())


def documents_left(folder: pathlib.Path, encoding: Encoding) -> int:
    """How many documents stand in no shard yet."""
    return sum(shard.documents for _, shard in _missing(folder, encoding))


def _missing(folder: pathlib.Path, encoding: Encoding) -> list[tuple[int, Shard]]:
    """The shards that are not there yet, with their numbers."""
    return [(n, s) for n, s in enumerate(encoding.shards()) if not _is_whole(folder, s, encoding.precision)]


def _is_whole(folder: pathlib.Path, shard: Shard, precision: str) -> bool:
    return all((folder / name).exists() for name in shard_files(shard.name, precision))


def _clear(folder: pathlib.Path, names: Iterable[str]) -> None:
    """Removes what a process left that was killed as it wrote these files."""
    for name in names:
        for left in folder.glob(f".{name}.*"):
            left.unlink()


class _Documents:
    """A corpus by shards, read forwards only: it may be larger than memory, or packed."""

    def __init__(self, read: Callable[[], Iterable[Document]], encoding: Encoding):
        self._read, self._size = read, encoding.shard_size
        self._stream, self._next = iter(read()), 0

    def of(self, number: int, shard: Shard) -> list[Document]:
        """The documents of a shard; one that comes before the last costs reading from the start."""
        if number < self._next:
            self._stream, self._next = iter(self._read()), 0
        skipped = (number - self._next) * self._size
        found = list(itertools.islice(self._stream, skipped, skipped + shard.documents))
        if len(found) < shard.documents:
            raise EndxError("the corpus has become shorter since it was first read; restore it, or encode it anew")
        self._next = number + 1
        return found
