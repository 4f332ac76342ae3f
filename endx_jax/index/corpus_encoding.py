"""Encoding of a corpus into an index, resumable, whole or in numbered shards that are joined afterwards."""

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
from typing import Any

import jax
import numpy as np
import tqdm

from endx_jax import json_files
from endx_jax.buckets import local_copy
from endx_jax.data.languages import detect
from endx_jax.data.sets.corpus import read_corpus
from endx_jax.data.sets.documents import Document
from endx_jax.data.tokenization import SAMPLE
from endx_jax.errors import EndxError, InUse, counted
from endx_jax.files import expanded
from endx_jax.index.index import ENCODED, rounded, starting
from endx_jax.index.index_file import (
    IndexInfo,
    count_passages,
    create,
    info_of,
    insert,
    is_new,
    metric_of,
    store_info,
)
from endx_jax.index.index_reader import IndexReader
from endx_jax.inference import EmbeddingModel, load
from endx_jax.inference.encode import EmbeddingFormat, Precision
from endx_jax.numerics import Quantized, holds_objects
from endx_jax.parallel.console import say, showing_progress
from endx_jax.settings import check_range, require

# Documents that are encoded and committed together; an interrupt loses these at most.
STEP = 8192

CorpusVectors = np.ndarray | Quantized


def encode_corpus(
    path_or_name: str | os.PathLike,
    corpus: str | os.PathLike,
    output: str | os.PathLike | None = None,
    *,
    language: str = "",
    precision: Precision = "float32",
    truncate_dim: int | None = None,
    shard: tuple[int, int] = (1, 1),
    reuse: str | os.PathLike | None = None,
    batch_size: int = 64,
    **reading: Any,
) -> pathlib.Path:
    """Encodes a corpus into an index, or finishes the one that an interrupted call left.

    Args:
      path_or_name: model, as for `endx_jax.load`.
      corpus: path of the corpus.
      output: file of the index; None for one in the cache.
      language: language of the texts, for BM25; empty to detect it.
      precision: float32, float16 or int8.
      truncate_dim: leading dimensions to keep; None: all.
      shard: number of the part of the corpus to encode, from 1, and number of parts.
      reuse: older index of the same model, whose embeddings of unchanged texts are taken over.
      batch_size: texts of maximum length encoded together.
      **reading: arguments of `read_corpus`.

    Returns:
      The file of the index.

    Raises:
      EndxError: an argument is invalid, the model or the corpus can't be read, or the file holds another index.
    """
    check_range("batch_size", batch_size, 1, 2**31 - 1)
    require(bool(output) or shard[1] == 1, "shard needs output=FILE, a file for each shard")
    folder = pathlib.Path() if output else expanded(ENCODED, "encode with output=FILE")
    corpus = os.fspath(corpus)
    read = functools.partial(read_corpus, corpus, **reading)
    bar = functools.partial(tqdm.tqdm, unit="text", disable=not showing_progress(), leave=False)
    surveyed = survey(bar(read(say=say), desc="reading the corpus"))
    surveyed = dataclasses.replace(surveyed, language=language or surveyed.language)
    empty = f", {surveyed.empty:,} of them empty" if surveyed.empty else ""
    known = f" with {surveyed.questions:,} known questions" if surveyed.questions else ""
    text = "passage" if surveyed.split else "document"
    say(f"{counted(surveyed.documents, text)}{known} in {corpus}{empty}")
    model = load(path_or_name)
    require(not (model.by_token and truncate_dim), "truncate_dim needs a model with one vector for each text")
    for line in model.encoder.processors["answer"].tokenizer.describe_unfit(surveyed.first, model.name):
        say(line)
    info = encoding_of(model, corpus, surveyed, width=truncate_dim, precision=precision, shard=shard)
    name = f"{model.identity[:16]}-{surveyed.sha256[:16]}.sqlite"
    path = pathlib.Path(output) if output else folder / name
    embeddings = EmbeddingFormat(info.width, model.cosine, "int8" if model.by_token else precision)
    options: dict[str, Any] = {"batch_size": batch_size, "progress": showing_progress(), "output": embeddings}
    encode = functools.partial(model.encoder, model.params, "answer", **options)
    # The copy has its own count of truncated texts, so that the model's encoder counts documents only.
    encode_question = functools.partial(copy.copy(model.encoder), model.params, "question", **options)
    older = Reuse(local_copy(reuse), info) if reuse else None
    total, done = len(documents_of(info)), begin_index(path, info)
    if done == total:
        say(f"{path} is their index already; nothing to encode")
        return path
    if done:
        say(f"{done:,} of them are encoded already")
    say(f"encoding {counted(total - done, text)}; programs are compiled the first time only")
    started, encoded = time.monotonic(), 0
    with bar(desc="encoding", total=total, initial=done) as progress:
        for count, new in encode_missing(path, info, read(), encode, encode_question=encode_question, reuse=older):
            encoded += new
            progress.update(count)
    seconds = time.monotonic() - started
    reused = f", took over {total - done - encoded:,} of {reuse}" if reuse else ""
    say(f"encoded {counted(encoded, text)}{reused} in {seconds:,.0f} s, {(total - done) / seconds:,.0f} a second")
    say(f"the index is {path}")
    if model.encoder.cut:
        say(model.encoder.processors["answer"].describe_cut(model.encoder.cut, encoded))
    return path


@dataclasses.dataclass(frozen=True)
class Survey:
    """Result of one pass over a corpus.

    Attributes:
      documents: number of texts: documents that are not split, and passages.
      empty: number of documents without text.
      sha256: hash of ids and numbers of passages, texts, metadata and known questions, in order.
      language: language of the texts.
      first: texts of the first documents.
      questions: number of known questions.
      split: true if a document is split into passages.
    """

    documents: int
    empty: int
    sha256: str
    language: str
    first: tuple[str, ...]
    questions: int = 0
    split: bool = False


def survey(documents: Iterable[Document]) -> Survey:
    """Reads a whole corpus, so that errors in it are raised before anything is encoded."""
    digest, count, empty, known, split = hashlib.sha256(), 0, 0, 0, False
    first: list[str] = []

    def read() -> Iterator[str]:
        nonlocal count, empty, known, split
        for document in documents:
            contents = [document.name, document.text, sorted(document.metadata.items()), *document.questions]
            digest.update(json.dumps(contents, ensure_ascii=False).encode() + b"\n")
            count += 1
            empty += not document.text
            known += len(document.questions)
            split |= document.passage > 0
            if len(first) < SAMPLE:
                first.append(document.text)
            yield document.text

    language = detect(read())
    return Survey(count, empty, digest.hexdigest(), language, tuple(first), known, split)


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
      precision: float32, float16 or int8.
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


def documents_of(info: IndexInfo) -> range:
    """Returns the positions in the corpus of the documents of an index that `encode_corpus` makes."""
    number, count = info.corpus.get("shard", (1, 1))
    return range(*(info.corpus["documents"] * part // count for part in (number - 1, number)))


def begin_index(path: pathlib.Path, info: IndexInfo) -> int:
    """Creates the index file, or finds the one that an interrupted call left; returns its number of documents.

    Raises:
      EndxError: the file holds another index; the message names each difference.
    """
    with starting(path) as database:
        if is_new(database):
            create(database, dataclasses.replace(info, complete=not documents_of(info)))
            return 0
        stored = info_of(database, path)
        differing = index_differences(stored, info)
        if differing:
            raise EndxError(
                f"{path} holds another index: it has {'; of '.join(differing)}. Choose another output, or repeat the "
                "command that began it"
            )
        if stored.language != info.language:
            store_info(database, language=info.language)
        return len(documents_of(info)) if stored.complete else count_passages(database)


def index_differences(stored: IndexInfo, info: IndexInfo, *, corpus: bool = True) -> list[str]:
    """Describes each difference between two indexes; names and paths do not count, the corpus if `corpus` is true."""
    described = []
    compared = (("model", "identity"), *((("corpus", "sha256"),) if corpus else ()))
    for what, key in compared:
        ours, others = getattr(stored, what), getattr(info, what)
        if ours.get(key) != others.get(key):
            described.append(f"{what} {_named(ours, key)} and not {_named(others, key)}")
    products = [info.model.get("product_dtype") for info in (stored, info)]
    if None not in products and products[0] != products[1]:
        described.append("product_dtype {} and not {}".format(*products))
    for name in ("width", "precision", "metric"):
        if getattr(stored, name) != getattr(info, name):
            described.append(f"{name} {getattr(stored, name)} and not {getattr(info, name)}")
    if corpus and stored.corpus.get("shard") != info.corpus.get("shard"):
        described.append(f"{_shard(stored)} and not {_shard(info)}")
    return described


def encode_missing(
    path: pathlib.Path,
    info: IndexInfo,
    documents: Iterable[Document],
    encode: Callable[[Sequence[str]], CorpusVectors],
    *,
    encode_question: Callable[[Sequence[str]], CorpusVectors] | None = None,
    reuse: "Reuse | None" = None,
) -> Iterator[tuple[int, int]]:
    """Encodes the documents that are missing in an index file, and completes it.

    Args:
      path: file that `begin_index` prepared.
      info: description of the index.
      documents: the whole corpus, in its order.
      encode: returns the embeddings of texts, of the index's width and precision.
      encode_question: returns those of known questions; needed if there are any.
      reuse: embeddings of texts that need not be encoded; known questions are always encoded.

    Yields:
      After each commit, the number of documents in it, and how many of them were encoded.

    Raises:
      InUse: another process writes to the file.
      EndxError: the corpus has fewer documents than before, or the file can't be written.
    """
    wanted, done = documents_of(info), begin_index(path, info)
    stream = itertools.islice(documents, wanted.start + done, wanted.stop)
    for start in range(done, len(wanted), STEP):
        part = list(itertools.islice(stream, STEP))
        if len(part) < min(STEP, len(wanted) - start):
            raise EndxError("the corpus is shorter than when it was first read; restore it, or encode it again")
        texts = [document.text for document in part]
        embeddings, encoded = reuse.encode(texts, encode) if reuse else (encode(texts), len(texts))
        asked = [question for document in part for question in document.questions]
        known = encode_question(asked) if encode_question and asked else None
        vectors = embeddings
        if holds_objects(embeddings):
            vectors, known = rounded(embeddings, len(part), info), rounded(known, len(asked), info)
        with starting(path) as database:
            if count_passages(database) != start:
                raise InUse(f"another process encodes documents into {path}: wait for it or stop it")
            insert(database, part, vectors, known, embeddings)
            store_info(database, complete=start + len(part) == len(wanted))
        yield len(part), encoded


class Reuse:
    """Embeddings of an older index, which are taken over for documents with the same text."""

    def __init__(self, path: pathlib.Path, info: IndexInfo):
        """Opens the older index and reads its texts.

        Raises:
          EndxError: the index is of another model, width, precision or metric than `info`.
        """
        self._reader = IndexReader(path)
        differing = index_differences(self._reader.info, info, corpus=False)
        if differing:
            raise EndxError(f"reuse={path} has {'; of '.join(differing)}: name another index, or leave it out")
        self._rows = {_digest(text): row for row, text in self._reader.texts()}

    def encode(
        self, texts: Sequence[str], encode: Callable[[Sequence[str]], CorpusVectors]
    ) -> tuple[CorpusVectors, int]:
        """Returns the embeddings of n texts, and how many were not in the older index and had to be encoded."""
        rows = {n: row for n, text in enumerate(texts) if (row := self._rows.get(_digest(text))) is not None}
        missing = [n for n in range(len(texts)) if n not in rows]
        embeddings = self._reader.embeddings_of([*rows.values()])
        if missing:
            fresh = encode([texts[n] for n in missing])
            embeddings = jax.tree.map(lambda old, new: np.concatenate([old, np.asarray(new)]), embeddings, fresh)
        order = np.argsort(np.array([*rows, *missing], int))
        return jax.tree.map(lambda rows: rows[order], embeddings), len(missing)


def _digest(text: str) -> bytes:
    """Returns a hash of a text, which takes less memory than the text."""
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()


def join_shards(path: pathlib.Path, parts: Sequence[pathlib.Path]) -> int:
    """Joins the indexes of all shards of a corpus into one; returns its number of documents.

    Raises:
      EndxError: a shard is missing, occurs twice, is not finished, was changed, or belongs to another encoding; or the
        output exists.
    """
    readers = [IndexReader(part) for part in parts]
    first = readers[0]
    by_number: dict[int, IndexReader] = {}
    for reader in readers:
        if "shard" not in reader.info.corpus:
            raise EndxError(f"{reader.path} is not a shard: name the files that `endx encode --shard=I/N` wrote")
        number, count = reader.info.corpus["shard"]
        same = dataclasses.replace(first.info, corpus={**first.info.corpus, "shard": [number, count]})
        if differing := index_differences(reader.info, same):
            raise EndxError(f"{reader.path} does not fit {first.path}: it has {'; '.join(differing)}")
        if count != first.info.corpus["shard"][1]:
            raise EndxError(f"{reader.path} does not fit {first.path}: it is {_shard(reader.info)}, of another number")
        if number in by_number:
            raise EndxError(f"{reader.path} and {by_number[number].path} are both {_shard(reader.info)}")
        if reader.info.changed or reader.count() != len(documents_of(reader.info)):
            raise EndxError(f"{reader.path} was changed since it was encoded: encode this shard again")
        by_number[number] = reader
    count = first.info.corpus["shard"][1]
    if absent := json_files.format_names(number for number in range(1, count + 1) if number not in by_number):
        raise EndxError(f"of {count} shards these are missing: {absent}; name the files of all")
    corpus = {key: value for key, value in first.info.corpus.items() if key != "shard"}
    with starting(path) as database:
        if not is_new(database):
            raise EndxError(f"{path} exists: name another output")
        info = first.info
        joined = IndexInfo(info.width, info.precision, info.metric, info.model, corpus, language=info.language)
        create(database, joined)
        for number in range(1, count + 1):
            by_number[number].copy_to(database)
        return count_passages(database)


def _shard(info: IndexInfo) -> str:
    return "shard {} of {}".format(*info.corpus["shard"]) if "shard" in info.corpus else "the whole corpus"


def _named(what: dict, key: str) -> str:
    count = f"{counted(what['documents'], 'document')}, " if "documents" in what else ""
    return f"{what.get('name', what.get('path'))} ({count}{key} {str(what.get(key))[:12]})"
