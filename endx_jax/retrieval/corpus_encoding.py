"""Encoding of a corpus into the shards of an index, by one process or several, resumable."""

import dataclasses
import hashlib
import itertools
import json
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from endx_jax import json_files
from endx_jax.data.documents import Document
from endx_jax.errors import EndxError, InUse
from endx_jax.files import OPEN_LOCK, poll, refusal_to_open, write_text
from endx_jax.inference import EmbeddingModel
from endx_jax.numerics import Quantized
from endx_jax.retrieval.shards import MANIFEST, Manifest, Shard, metric_of, shard_files, write_manifest, write_shard

LOCK_FILE = ".claims"
# Seconds to wait for another process's claim of the whole folder; claims last milliseconds.
WAIT = 30.0


class Claims:
    """Numbered claims on parts of a folder, each held by one process at most.

    They are advisory locks (`fcntl`) on single bytes of one file: the system frees them when a process dies, and they
    hold between machines if the file system shares them, as NFS does. They belong to the process: they do not exclude
    its threads from each other, and a process must open a folder's claims only once.
    """

    def __init__(self, folder: pathlib.Path):
        """Opens the claims of a folder, which is created if missing.

        Raises:
          EndxError: the folder can't be written, or the system has no POSIX locks.
        """
        try:
            import fcntl
        except ImportError:
            raise EndxError("encoding a corpus needs POSIX locks, which Windows lacks: run it under WSL") from None
        self._fcntl = fcntl
        self._path = folder / LOCK_FILE
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, OPEN_LOCK, 0o644)
        except OSError as failure:
            raise EndxError(f"can't write {self._path}: {refusal_to_open(failure)}") from None

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        os.close(self._file)

    @contextmanager
    def of(self, number: int) -> Iterator[bool]:
        """Claims part `number`, from 0, without waiting; yields true if this process has it until the block ends."""
        mine = self._lock(1 + number, 0.0)
        try:
            yield mine
        finally:
            if mine:
                self._fcntl.lockf(self._file, self._fcntl.LOCK_UN, 1, 1 + number)

    @contextmanager
    def of_all(self) -> Iterator[None]:
        """Claims the folder as a whole, waiting up to `WAIT` seconds for another process; parts are not claimed.

        Raises:
          InUse: another process holds it.
        """
        if not self._lock(0, WAIT):
            raise InUse(
                f"another process holds the lock {self._path} (`fuser {self._path}` names it): wait for it or stop it"
            )
        try:
            yield
        finally:
            self._fcntl.lockf(self._file, self._fcntl.LOCK_UN, 1, 0)

    def _lock(self, byte: int, seconds: float) -> bool:
        exclusive = self._fcntl.LOCK_EX | self._fcntl.LOCK_NB
        try:
            return poll(lambda: self._fcntl.lockf(self._file, exclusive, 1, byte), seconds)
        except OSError as failure:
            raise EndxError(
                f"{self._path} can't be locked ({failure.strerror}): choose a folder on a file system with POSIX locks"
            ) from None


ENCODING = "encoding.json"


@dataclasses.dataclass(frozen=True)
class Encoding:
    """Specification of an encoding, which determines the shards; the contents of `encoding.json`.

    Attributes:
      model: `name` and `identity` (see `inference.identity`).
      corpus: `path`, `documents` (their number) and `sha256` of their contents.
      width: E of the embeddings.
      precision: float32, float16 or int8.
      metric: metric of the index.
      shard_size: documents of each shard but the last.
    """

    model: Mapping[str, str]
    corpus: Mapping[str, Any]
    width: int
    precision: str
    metric: str
    shard_size: int

    def shards(self) -> list[Shard]:
        """Returns all shards, in order."""
        count, size = self.corpus["documents"], self.shard_size
        return [Shard(f"{n:05d}", min(size, count - start)) for n, start in enumerate(range(0, count, size))]

    def manifest(self) -> Manifest:
        """Returns the manifest of the whole index."""
        return Manifest(
            width=self.width,
            precision=self.precision,
            metric=self.metric,
            model=self.model,
            shards=tuple(self.shards()),
            corpus=self.corpus,
        )

    def differences(self, other: "Encoding") -> list[str]:
        """Describes each difference from `other` that changes the index; ignores names and paths."""
        found = []
        for what, key in (("model", "identity"), ("corpus", "sha256")):
            mine, its = getattr(self, what), getattr(other, what)
            if mine[key] != its[key]:
                found.append(f"{what} {_named(mine, key)} and not {_named(its, key)}")
        for name in ("width", "precision", "metric", "shard_size"):
            mine, its = getattr(self, name), getattr(other, name)
            if mine != its:
                found.append(f"{name.replace('_', ' ')} {mine} and not {its}")
        return found


def _named(what: Mapping[str, Any], key: str) -> str:
    count = f"{what['documents']:,} documents, " if "documents" in what else ""
    return f"{what.get('name', what.get('path'))} ({count}{key} {what[key][:12]})"


@dataclasses.dataclass(frozen=True)
class Survey:
    """Result of one pass over a corpus.

    Attributes:
      documents: number of documents.
      empty: number of documents without text.
      sha256: hash of ids, texts and metadata, in order.
    """

    documents: int
    empty: int
    sha256: str


def encoding_of(
    model: EmbeddingModel, path: str, found: Survey, *, width: int | None = None, precision: str, shard_size: int
) -> Encoding:
    """Returns the specification of encoding a corpus, surveyed at `path`, with a model; all its dimensions by default.

    Raises:
      EndxError: the model has fewer dimensions than `width`, or a shard would hold no document.
    """
    whole = model.encoder.width(model.params)
    width = model.width if width is None else width
    if not 0 < width <= whole:
        raise EndxError(f"--truncate-dim={width}: embeddings of {model.name} have {whole} dimensions")
    if shard_size < 1:
        raise EndxError(f"--shard-size={shard_size}: a shard holds at least one document")
    return Encoding(
        model={"name": model.name, "identity": model.identity},
        corpus={"path": path, "documents": found.documents, "sha256": found.sha256},
        width=width,
        precision=precision,
        metric=metric_of(cosine=model.cosine),
        shard_size=shard_size,
    )


def survey(documents: Iterable[Document]) -> Survey:
    """Reads a whole corpus, so that errors in it are raised before anything is encoded."""
    digest, count, empty = hashlib.sha256(), 0, 0
    for document in documents:
        contents = [document.id, document.text, sorted(document.metadata.items())]
        digest.update(json.dumps(contents, ensure_ascii=False).encode() + b"\n")
        count += 1
        empty += not document.text
    return Survey(count, empty, digest.hexdigest())


def begin(folder: pathlib.Path, claims: Claims, encoding: Encoding) -> bool:
    """Starts or resumes an encoding in a folder.

    Returns:
      False if the index is complete already.

    Raises:
      EndxError: the folder holds another encoding or index; the message names each difference.
    """
    path = folder / ENCODING
    with claims.of_all():
        _clear(folder, [ENCODING])
        if not path.exists():
            if (folder / MANIFEST).exists():
                raise EndxError(f"{folder} contains an index that `endx encode` did not make; choose another --output")
            write_text(path, json.dumps(dataclasses.asdict(encoding), indent=1, ensure_ascii=False) + "\n")
    differences = _read(path).differences(encoding)
    if differences:
        raise EndxError(
            f"{folder} belongs to another encoding: it has {'; of '.join(differences)}. Choose another --output, or "
            "repeat the command that started it"
        )
    return not (folder / MANIFEST).exists()


def _read(path: pathlib.Path) -> Encoding:
    """Reads `encoding.json`.

    Raises:
      EndxError: a field is missing or wrong.
    """
    fields, where = json_files.read(path), str(path)

    def field(key: str, holder: object = fields) -> object:
        return json_files.value(holder, key, where)

    model, corpus = (json_files.mapped(field(key), f"{where}: {key!r}") for key in ("model", "corpus"))
    for holder, keys in ((model, ("name", "identity")), (corpus, ("path", "sha256")), (fields, ("metric",))):
        for key in keys:
            json_files.text(field(key, holder), f"{where}: {key!r}", may_be_empty=True)
    json_files.whole(field("documents", corpus), f"{where}: 'documents'")
    return Encoding(
        model=model,
        corpus=corpus,
        width=json_files.whole(field("width"), f"{where}: 'width'", least=1),
        precision=json_files.text(field("precision"), f"{where}: 'precision'"),
        metric=fields["metric"],
        shard_size=json_files.whole(field("shard_size"), f"{where}: 'shard_size'", least=1),
    )


def encode_shards(
    folder: pathlib.Path,
    claims: Claims,
    encoding: Encoding,
    read: Callable[[], Iterable[Document]],
    encode: Callable[[Sequence[str]], np.ndarray | Quantized],
) -> Iterator[Shard]:
    """Encodes the missing shards that no other process is encoding; yields each when it is written.

    Shards are encoded independently, so the result does not depend on the processes or on the shards that exist
    already. The process that finds all shards complete writes the manifest, which completes the index.

    Args:
      folder: folder of the index, prepared by `begin`.
      claims: claims of that folder.
      encoding: specification.
      read: returns an iterator over the corpus from its start.
      encode: returns the embeddings of texts, of the encoding's width and precision.

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
    """Returns the number of documents in missing shards."""
    return sum(shard.documents for _, shard in _missing(folder, encoding))


def _missing(folder: pathlib.Path, encoding: Encoding) -> list[tuple[int, Shard]]:
    """Returns the missing shards, with their numbers."""
    return [(n, s) for n, s in enumerate(encoding.shards()) if not _is_whole(folder, s, encoding.precision)]


def _is_whole(folder: pathlib.Path, shard: Shard, precision: str) -> bool:
    return all((folder / name).exists() for name in shard_files(shard.name, precision))


def _clear(folder: pathlib.Path, names: Iterable[str]) -> None:
    """Removes temporary files left by killed processes that were writing these files."""
    for name in names:
        for left in folder.glob(f".{name}.*"):
            left.unlink()


class _Documents:
    """Corpus by shards, read forwards only: it may be larger than memory, or compressed."""

    def __init__(self, read: Callable[[], Iterable[Document]], encoding: Encoding):
        self._read, self._size = read, encoding.shard_size
        self._stream, self._next = iter(read()), 0

    def of(self, number: int, shard: Shard) -> list[Document]:
        """Returns the documents of a shard; going back to an earlier shard reads the corpus from its start."""
        if number < self._next:
            self._stream, self._next = iter(self._read()), 0
        skipped = (number - self._next) * self._size
        found = list(itertools.islice(self._stream, skipped, skipped + shard.documents))
        if len(found) < shard.documents:
            raise EndxError("the corpus is shorter than when it was first read; restore it, or encode it again")
        self._next = number + 1
        return found
