"""MS MARCO passage ranking (Bajaj et al. 2016): `collection.tsv`, `queries.SPLIT.tsv` and `qrels.SPLIT.tsv`."""

import os
from collections.abc import Iterator, Mapping

from endx_jax import json_files
from endx_jax.data.formats import folders, row_files, tables, text_files
from endx_jax.data.formats.folders import chosen_split
from endx_jax.data.formats.format import Format, Place, ReadOptions
from endx_jax.data.formats.tables import ids_and_texts
from endx_jax.data.formats.text_files import InvalidRows
from endx_jax.data.sets.examples import Example, Judgements, UniqueIds
from endx_jax.errors import EndxError

COLLECTION = "collection.tsv"


def examples(place: Place, options: ReadOptions, invalid: InvalidRows) -> Iterator[tuple[str, Example]]:
    """Yields the judged queries of one split with the passages that are right for them; skips no invalid lines.

    The collection of 8.8 million passages is scanned once; only right passages are kept in memory. This is the pool of
    Dong et al. 2022 ("the relevant passages as answer candidates"). `endx encode` and `endx evaluate --index` rank the
    whole collection. A passage with a judgement above 0 is right.

    Raises:
      EndxError: a file is missing or invalid, or a judgement has an unknown query or passage.
    """
    path, right = _right(place.path, options.split)
    queries = _queries(place.path, path, right)
    named = {passage: line for passages in right.values() for passage, line in passages.items()}
    passages = _texts(_part(place.path, COLLECTION), named, path)
    for query, places in right.items():
        yield path, Example(queries[query], [(passages[name], name) for name in places], id=query)


def judgements(place: Place, options: ReadOptions, invalid: InvalidRows) -> Judgements:
    """Returns the judged queries of a split and the ids of their right passages; the collection is not read."""
    path, right = _right(place.path, options.split)
    queries = _queries(place.path, path, right)
    graded = tuple(dict.fromkeys(passages, 1) for passages in right.values())
    return Judgements(tuple(right), tuple(queries[name] for name in right), graded, ((),) * len(right))


def _queries(folder: str, judgements: str, right: Mapping[str, Mapping[str, int]]) -> dict[str, str]:
    wanted = {query: next(iter(passages.values())) for query, passages in right.items()}
    return _texts(_part(folder, f"queries.{_split_of(judgements)}.tsv"), wanted, judgements)


def _right(folder: str, split: str | None) -> tuple[str, dict[str, dict[str, int]]]:
    """Returns the judgements file of a split, and the right passages of each query with their line numbers."""
    path = _judgements_path(folder, split)
    right: dict[str, dict[str, int]] = {}
    for number, line in text_files.lines(path):
        columns = line.split()
        if not columns:
            continue
        where = f"{path}, line {number}"
        if len(columns) != 4:
            raise EndxError(f"{where}: a judgement has four fields: query id, 0, passage id and a whole number")
        query, _, passage, score = columns
        if row_files.whole_number(score, f"{where}: the score") > 0:
            right.setdefault(query, {}).setdefault(passage, number)
    if not right:
        raise EndxError(f"{path}: no judgement is above 0")
    return path, right


def _judgements_path(folder: str, split: str | None) -> str:
    files = {_split_of(name): name for name in sorted(os.listdir(folder)) if _split_of(name)}
    if not files:
        raise EndxError(
            f"{folder}: no qrels.SPLIT.tsv in the folder, which is read as MS MARCO because of its {COLLECTION}"
        )
    return os.path.join(folder, files[chosen_split([*files], split, folder)])


def _split_of(path: str) -> str:
    """Returns the split in a file name, such as `dev.small` of `qrels.dev.small.tsv`; empty for other files."""
    name = os.path.basename(path).removesuffix(".gz")
    is_one = name.startswith("qrels.") and name.endswith(".tsv")
    return name.removeprefix("qrels.").removesuffix(".tsv") if is_one else ""


def _part(folder: str, name: str) -> str:
    path = folders.plain_or_gzip(os.path.join(folder, name))
    if not os.path.exists(path):
        raise EndxError(f"{folder}: no {name} in the folder, which is read as MS MARCO")
    return path


def _texts(path: str, wanted: Mapping[str, int], judgements: str) -> dict[str, str]:
    """Returns the texts of the `wanted` ids, which map to their line in `judgements`, by id."""
    texts: dict[str, str] = {}
    ids = UniqueIds()
    for where, name, text in ids_and_texts(path):
        if name in wanted:
            ids.add([(text, name)], where)
            texts[name] = json_files.as_text(text, f"{where}: the text that {judgements}, line {wanted[name]}, names")
    missing = next((name for name in wanted if name not in texts), None)
    if missing is not None:
        raise EndxError(f"{judgements}, line {wanted[missing]}: {missing[:100]!r} is not in {os.path.basename(path)}")
    return texts


MSMARCO = Format(
    "msmarco",
    lambda place: place.has(COLLECTION),
    examples=examples,
    documents=lambda place, options, invalid: tables.documents(Place(place.part(COLLECTION)), options, invalid),
    judgements=judgements,
)
