"""Indexes of parts of a corpus, which several processes or machines encode: comparison and joining."""

import dataclasses
import os
import pathlib
from collections.abc import Sequence

from endx_jax import json_files
from endx_jax.errors import EndxError, counted
from endx_jax.files import expanded
from endx_jax.index.index_file import IndexInfo, changing, create, is_new
from endx_jax.index.store import Store, copy_into, count_passages
from endx_jax.uploads import uploads


def shard_range(info: IndexInfo) -> range:
    """Returns the positions in the corpus of the documents of an index that `encode_corpus` makes."""
    number, count = info.corpus.get("shard", (1, 1))
    return range(*(info.corpus["documents"] * part // count for part in (number - 1, number)))


def encoding_settings(info: IndexInfo) -> dict[str, object]:
    """Returns the settings, other than the model, that affect the embedding of a text."""
    return {
        "product_dtype": info.model.get("product_dtype") or "unknown",
        "pool_factor": info.model.get("pool_factor", 1),
        "width": info.width,
        "precision": info.precision,
        "metric": info.metric,
    }


def index_differences(stored: IndexInfo, info: IndexInfo, *, corpus: bool = True) -> list[str]:
    """Describes each difference between two indexes; names and paths do not count, the corpus if `corpus` is true."""
    described = []
    compared = (("model", "identity"), *((("corpus", "sha256"),) if corpus else ()))
    for what, key in compared:
        ours, others = getattr(stored, what), getattr(info, what)
        if ours.get(key) != others.get(key):
            described.append(f"{what} {_named(ours, key)}, not {_named(others, key)}")
    ours, others = encoding_settings(stored), encoding_settings(info)
    described += [f"{name} {ours[name]}, not {others[name]}" for name in ours if ours[name] != others[name]]
    if corpus and stored.corpus.get("shard") != info.corpus.get("shard"):
        described.append(f"{_shard(stored)}, not {_shard(info)}")
    return described


@uploads()
def join_shards(output: str | os.PathLike, parts: Sequence[pathlib.Path]) -> int:
    """Joins the indexes of all shards of a corpus into one; returns its number of passages.

    Raises:
      EndxError: a shard is missing, occurs twice, is not finished, was changed, or belongs to another encoding; or the
        output exists.
    """
    path, stores = expanded(output), [Store(part) for part in parts]
    first = stores[0]
    by_number: dict[int, Store] = {}
    for store in stores:
        if "shard" not in store.info.corpus:
            raise EndxError(f"{store.path} is not a shard: name the files that `endx encode --shard=I/N` wrote")
        number, count = store.info.corpus["shard"]
        same = dataclasses.replace(first.info, corpus={**first.info.corpus, "shard": [number, count]})
        differing = index_differences(store.info, same)
        if store.info.language != same.language:
            stated = f"language {store.info.language}, not {same.language}"
            differing.append(f"{stated} (set it by the same `endx encode` command with --language)")
        if differing:
            raise EndxError(f"{store.path} does not fit {first.path}: {'; '.join(differing)}")
        if count != first.info.corpus["shard"][1]:
            raise EndxError(f"{store.path} does not fit {first.path}: it is {_shard(store.info)}, of another number")
        if number in by_number:
            raise EndxError(f"{store.path} and {by_number[number].path} are both {_shard(store.info)}")
        if store.info.changed or [*store.rows("SELECT count(*) FROM passages")] != [(len(shard_range(store.info)),)]:
            raise EndxError(f"{store.path} was changed since it was encoded: encode this shard again")
        by_number[number] = store
    count = first.info.corpus["shard"][1]
    if absent := json_files.format_names(number for number in range(1, count + 1) if number not in by_number):
        raise EndxError(f"of {count} shards these are missing: {absent}; name the files of all")
    corpus = {key: value for key, value in first.info.corpus.items() if key != "shard"}
    with changing(path, may_create=True) as database:
        if not is_new(database):
            raise EndxError(f"{path} exists: name another output")
        info = first.info
        joined = IndexInfo(info.width, info.precision, info.metric, info.model, corpus, language=info.language)
        create(database, joined)
        for number in range(1, count + 1):
            copy_into(database, by_number[number])
        return count_passages(database)


def _shard(info: IndexInfo) -> str:
    return "shard {} of {}".format(*info.corpus["shard"]) if "shard" in info.corpus else "the whole corpus"


def _named(what: dict, key: str) -> str:
    count = f"{counted(what['documents'], 'document')}, " if "documents" in what else ""
    return f"{what.get('name', what.get('path'))} ({count}{key} {str(what.get(key))[:12]})"
