"""Encoding of a corpus into an index, resumable, whole or in numbered shards that are joined afterwards."""

import contextlib
import contextvars
import copy
import dataclasses
import functools
import hashlib
import itertools
import json
import os
import pathlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tqdm

from endx_jax.buckets import local_copy
from endx_jax.data.batches.ragged import RaggedVectors, concatenate, take
from endx_jax.data.formats import read_corpus
from endx_jax.data.languages import detect
from endx_jax.data.sets.documents import Document
from endx_jax.data.tokenization import SAMPLE
from endx_jax.errors import EndxError, InUse, counted
from endx_jax.files import expanded
from endx_jax.index.index import ENCODED
from endx_jax.index.index_file import PRECISIONS, IndexInfo, changing, create, info_of, is_new, metric_of, store_info
from endx_jax.index.lexical import Lexical
from endx_jax.index.shards import encoding_settings, index_differences, shard_range
from endx_jax.index.snapshot import Snapshot
from endx_jax.index.store import LISTED, Embeddings, Store, count_passages, insert
from endx_jax.inference import EmbeddingModel, load
from endx_jax.inference.encode import EmbeddingFormat
from endx_jax.numerics import Quantized
from endx_jax.parallel.console import say, showing_progress
from endx_jax.settings import check_choice, check_range, require
from endx_jax.uploads import uploads

# Documents that are encoded and committed together; an interrupt loses these at most.
STEP = 8192


@dataclasses.dataclass(frozen=True)
class Encoding:
    """How the texts of a corpus are encoded.

    Attributes:
      precision: float32, float16, int8 or binary: see `IndexInfo`.
      truncate_dim: leading dimensions to keep; None: all.
      batch_size: texts of maximum length encoded together.
      pool_factor: token vectors of which one is kept, as in `EmbeddingModel.encode_document`; None: the model's own.
    """

    precision: str = "float32"
    truncate_dim: int | None = None
    batch_size: int = 64
    pool_factor: float | None = None

    def __post_init__(self):
        check_choice("precision", self.precision, PRECISIONS)
        check_range("batch_size", self.batch_size, 1, 2**31 - 1)


@uploads(resumable=True)
def encode_corpus(
    path_or_name: str | os.PathLike,
    corpus: str | os.PathLike,
    output: str | os.PathLike | None = None,
    encoding: Encoding = Encoding(),
    *,
    language: str = "",
    shard: tuple[int, int] = (1, 1),
    reuse: str | os.PathLike | None = None,
    **reading: Any,
) -> str | os.PathLike:
    """Encodes a corpus into an index, or finishes the one that an interrupted call left.

    Args:
      path_or_name: model, as for `endx_jax.load`.
      corpus: path of the corpus.
      output: file of the index, which may be in a bucket; None for one in the cache.
      encoding: precision and width of the embeddings, and size of batches.
      language: language of the texts, for BM25; empty to detect it.
      shard: number of the part of the corpus to encode, from 1, and number of parts.
      reuse: older index of the same model, whose embeddings of unchanged texts are taken over.
      **reading: arguments of `read_corpus`.

    Returns:
      The path of the index.

    Raises:
      EndxError: an argument is invalid, the model or the corpus can't be read, or the file holds another index.
    """
    require(bool(output) or shard[1] == 1, "shard needs output=FILE, a file for each shard")
    folder = pathlib.Path() if output else expanded(ENCODED, "encode with output=FILE")
    corpus = os.fspath(corpus)
    read = functools.partial(read_corpus, corpus, **reading)
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(contextvars.copy_context().run, load, path_or_name)
        surveyed = survey(_bar(read(say=say), desc="reading the corpus"))
    surveyed = dataclasses.replace(surveyed, language=language or surveyed.language)
    say(f"{surveyed} in {corpus}{f', {surveyed.empty:,} of them empty' if surveyed.empty else ''}")
    model = loading.result()
    if encoding.pool_factor is not None:
        require(model.by_token, "pool_factor needs a model with an embedding for each token")
        pooling = dataclasses.replace(model.token_pooling, factor=encoding.pool_factor)
        model = dataclasses.replace(model, token_pooling=pooling)
    width = encoding.truncate_dim
    require(not (model.by_token and width), "truncate_dim needs a model with one vector for each text")
    for line in model.encoder.processors["answer"].tokenizer.describe_unfit(surveyed.first, model.name):
        say(line)
    info = encoding_of(model, corpus, surveyed, width=width, precision=encoding.precision, shard=shard)
    settings = json.dumps([model.identity, encoding_settings(info)]).encode()
    kind = hashlib.sha256(settings).hexdigest()[:16]
    path = expanded(output) if output else folder / f"{kind}-{surveyed.sha256[:16]}.sqlite"
    older = Reuse(local_copy(reuse), info) if reuse else None
    left = len(shard_range(info)) - begin_index(path, info)
    if not left:
        say(f"{path} is their index already; nothing to encode")
        return path
    if not output and not older:
        older = _earlier(folder.glob(f"{kind}-*.sqlite"), info)
    text = "passage" if surveyed.split else "document"
    if left < len(shard_range(info)):
        say(f"{len(shard_range(info)) - left:,} of them are encoded already")
    say(f"encoding {counted(left, text)}; programs are compiled the first time only")
    started = time.monotonic()
    encoded = _encode_with(model, encoding, path, info, unchanged(read(), surveyed), older)
    seconds = time.monotonic() - started
    reused = f", took over {left - encoded:,} of {reuse or 'an earlier index'}" if older else ""
    say(f"encoded {counted(encoded, text)}{reused} in {seconds:,.0f} s, {left / seconds:,.0f} a second")
    if shard[1] == 1:
        Lexical().rank(Snapshot.read(Store(path)), [], 1)  # makes the caches
    say(f"the index is {path}")
    if model.encoder.cut:
        say(model.encoder.processors["answer"].describe_cut(model.encoder.cut, encoded, split=surveyed.split))
    return path


def _earlier(paths: Iterable[pathlib.Path], info: IndexInfo) -> "Reuse | None":
    """Opens the newest finished index of an earlier state of the corpus; None if there is none."""
    for path in sorted(paths, key=os.path.getmtime, reverse=True):
        with contextlib.suppress(EndxError):  # it is not finished, or is damaged
            if Store(path).info.corpus.get("path") == info.corpus["path"]:
                return Reuse(path, info)
    return None


def _encode_with(
    model: EmbeddingModel,
    encoding: Encoding,
    path: pathlib.Path,
    info: IndexInfo,
    documents: Iterable[Document],
    older: "Reuse | None",
) -> int:
    """Encodes the documents that are missing with a progress bar; returns the number of those that were encoded."""
    precision: Any = "int8" if model.by_token else info.dtype.name
    options: dict[str, Any] = {"batch_size": encoding.batch_size, "progress": showing_progress()}
    output = EmbeddingFormat(info.width, model.cosine, precision)
    encode = functools.partial(model.encode_side, "answer", output=output, **options)
    # The copy has its own count of truncated texts, so that the model's encoder counts documents only.
    encode_question = functools.partial(copy.copy(model.encoder), model.params, "question", output=output, **options)
    total, encoded = len(shard_range(info)), 0
    with _bar(desc="encoding", total=total, initial=begin_index(path, info)) as progress:
        for count, new in encode_missing(path, info, documents, encode, encode_question=encode_question, reuse=older):
            encoded += new
            progress.update(count)
    return encoded


def _bar(*documents: Iterable, **options: Any) -> tqdm.tqdm:
    return tqdm.tqdm(*documents, unit="text", disable=not showing_progress(), leave=False, **options)


@dataclasses.dataclass(frozen=True)
class Survey:
    """Result of one pass over a corpus.

    Attributes:
      documents: number of texts: documents that are not split, and passages.
      empty: number of documents without text.
      hashes: of names, texts, metadata and known questions, up to every `STEP`-th document and the last one.
      language: language of the texts.
      first: texts of the first documents.
      questions: number of known questions.
      split: true if a document is split into passages.
    """

    documents: int
    empty: int
    hashes: tuple[str, ...]
    language: str
    first: tuple[str, ...]
    questions: int = 0
    split: bool = False

    @property
    def sha256(self) -> str:
        """Hash of the whole corpus."""
        return self.hashes[-1]

    def __str__(self) -> str:
        known = f" with {self.questions:,} known questions" if self.questions else ""
        return f"{counted(self.documents, 'passage' if self.split else 'document')}{known}"


def survey(documents: Iterable[Document]) -> Survey:
    """Reads a whole corpus, so that errors in it are raised before anything is encoded."""
    digest, count, empty, known, split = hashlib.sha256(), 0, 0, 0, False
    first: list[str] = []
    hashes: list[str] = []

    def read() -> Iterator[str]:
        nonlocal count, empty, known, split
        for document in documents:
            digest.update(_contents(document))
            count += 1
            empty += not document.text
            known += len(document.questions)
            split |= document.passage > 0
            if len(first) < SAMPLE:
                first.append(document.text)
            if count % STEP == 0:
                hashes.append(digest.hexdigest())
            yield document.text

    language = detect(read())
    return Survey(count, empty, (*hashes, digest.hexdigest()), language, tuple(first), known, split)


def unchanged(documents: Iterable[Document], corpus: Survey) -> Iterator[Document]:
    """Yields the documents of a surveyed corpus while they equal those of the survey; ignores appended ones.

    Raises:
      EndxError: a document differs from the survey; no such document is yielded.
    """
    digest, stream = hashlib.sha256(), itertools.islice(documents, corpus.documents)
    for expected in corpus.hashes:
        part = [*itertools.islice(stream, STEP)]
        for document in part:
            digest.update(_contents(document))
        if digest.hexdigest() != expected:
            raise EndxError("the corpus has changed since it was first read; restore it, or encode it again")
        yield from part


def _contents(document: Document) -> bytes:
    """Returns what is hashed of a document."""
    contents = [document.name, document.text, sorted(document.metadata.items()), *document.questions]
    return json.dumps(contents, ensure_ascii=False).encode() + b"\n"


def encoding_of(
    model: EmbeddingModel,
    path: str,
    corpus: Survey,
    *,
    width: int | None = None,
    precision: str,
    shard: tuple[int, int] = (1, 1),
) -> IndexInfo:
    """Returns the description of the index of a corpus, surveyed at `path`, or of one of its shards.

    Args:
      model: model that encodes the documents.
      path: path of the corpus.
      corpus: its survey.
      width: leading dimensions to keep; None: all.
      precision: float32, float16, int8 or binary.
      shard: number of the shard, from 1, and number of shards.

    Raises:
      EndxError: the model has fewer dimensions than `width`, or there is no such shard.
    """
    whole = model.encoder.width(model.params)
    width = model.width if width is None else width
    if not 0 < width <= whole:
        raise EndxError(f"truncate_dim={width}: embeddings of {model.name} have {whole} dimensions")
    number, count = shard
    if not 1 <= number <= count:
        raise EndxError(f"shard={number}/{count}: shards are numbered from 1 to {count}")
    return IndexInfo(
        width=width,
        precision=precision,
        metric=metric_of(cosine=model.cosine),
        model=model.description,
        corpus={"path": path, "documents": corpus.documents, "sha256": corpus.sha256}
        | ({"shard": [number, count]} if count > 1 else {}),
        complete=False,
        language=corpus.language,
    )


def begin_index(path: pathlib.Path, info: IndexInfo) -> int:
    """Creates the index file, or finds the one that an interrupted call left; returns its number of documents.

    Raises:
      EndxError: the file holds another index; the message names each difference.
    """
    with changing(path, may_create=True) as database:
        if is_new(database):
            create(database, dataclasses.replace(info, complete=not shard_range(info)))
            return 0
        stored = info_of(database, path)
        differing = index_differences(stored, info)
        if differing:
            raise EndxError(f"{path} holds another index: {'; '.join(differing)}. Choose another output")
        if stored.language != info.language:
            store_info(database, language=info.language)
        return len(shard_range(info)) if stored.complete else count_passages(database)


def encode_missing(
    path: pathlib.Path,
    info: IndexInfo,
    documents: Iterable[Document],
    encode: Callable[[Sequence[str]], Embeddings],
    *,
    encode_question: Callable[[Sequence[str]], Embeddings] | None = None,
    reuse: "Reuse | None" = None,
    step: int = STEP,
) -> Iterator[tuple[int, int]]:
    """Encodes the documents that are missing in an index file, and completes it.

    Args:
      path: file that `begin_index` prepared.
      info: description of the index.
      documents: the whole corpus, in its order, such as `unchanged` yields it.
      encode: returns the embeddings of texts, of the index's width and precision.
      encode_question: returns those of known questions; needed if there are any.
      reuse: embeddings of texts that need not be encoded; known questions are always encoded.
      step: number of documents of a commit.

    Yields:
      After each commit, the number of documents in it, and how many of them were encoded.

    Raises:
      InUse: another process writes to the file.
      EndxError: the corpus has fewer documents than before, or the file can't be written.
    """
    wanted, done = shard_range(info), begin_index(path, info)
    stream = itertools.islice(documents, wanted.start + done, wanted.stop)
    for start in range(done, len(wanted), step):
        part = list(itertools.islice(stream, step))
        if len(part) < min(step, len(wanted) - start):
            raise EndxError("the corpus is shorter than when it was first read; restore it, or encode it again")
        texts = [document.text for document in part]
        embeddings, encoded = reuse.encode(texts, encode) if reuse else (encode(texts), len(texts))
        asked = [question for document in part for question in document.questions]
        known = encode_question(asked) if encode_question and asked else None
        with changing(path, may_create=True) as database:
            if count_passages(database) != start:
                raise InUse(f"another process encodes documents into {path}: wait for it or stop it")
            insert(database, info, part, embeddings, known)
            store_info(database, complete=start + len(part) == len(wanted))
        yield len(part), encoded


class Reuse:
    """Embeddings of an older index, which are taken over for documents with the same text."""

    def __init__(self, path: pathlib.Path, info: IndexInfo):
        """Opens the older index and reads its texts.

        Raises:
          EndxError: the index is of another model, width, precision or metric than `info`.
        """
        self._store = Store(path)
        differing = index_differences(self._store.info, info, corpus=False)
        if differing:
            raise EndxError(f"reuse={path} is another index: {'; '.join(differing)}; name another, or leave it out")
        self._rows = {_digest(text): row for row, text in self._store.rows("SELECT row, text FROM passages")}

    def encode(self, texts: Sequence[str], encode: Callable[[Sequence[str]], Embeddings]) -> tuple[Embeddings, int]:
        """Returns the embeddings of n texts, and how many were not in the older index and had to be encoded."""
        rows = [self._rows.get(_digest(text), 0) for text in texts]  # the first row of an index is 1
        found, parts = self._stored(rows)  # without those that were deleted since the texts were read
        places = {row: n for n, row in enumerate(found)}
        missing = [text for text, row in zip(texts, rows, strict=True) if row not in places]
        parts += [encode(missing)] if missing else []
        new = itertools.count(len(found))
        order = np.array([places[row] if row in places else next(new) for row in rows], int)
        return take(concatenate(parts), order), len(missing)

    def _stored(self, rows: Sequence[int]) -> tuple[list[int], list[Embeddings]]:
        """Returns those of the rows that the index has, and their embeddings or token vectors in this order."""
        if [*self._store.rows("SELECT 1 FROM tokens LIMIT 1")]:
            vectors = self._store.token_vectors(rows)
            return [*vectors], [RaggedVectors.of([*vectors.values()])] if vectors else []
        parts = [*self._store.embeddings(f"row IN {LISTED}", json.dumps(rows))]
        stored = [p.embeddings if p.scales is None else Quantized(p.embeddings, p.scales) for p in parts]
        return [row for part in parts for row in part.rows.tolist()], stored


def _digest(text: str) -> bytes:
    """Returns a hash of a text, which takes less memory than the text."""
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()
