"""MS MARCO passage ranking (Bajaj et al. 2016): `collection.tsv`, `queries.SPLIT.tsv` and `qrels.SPLIT.tsv`."""

import os
from collections.abc import Iterator, Mapping

from endx_jax.data.readers import files
from endx_jax.data.readers.folders import chosen_split
from endx_jax.data.readers.gathering import Gathering, Named
from endx_jax.data.records import RetrievalSet
from endx_jax.errors import EndxError

COLLECTION = "collection.tsv"


def read(folder: str, split: str | None = None) -> RetrievalSet:
    """Reads one split's judged queries, and of the collection only the passages that are right for one.

    The collection is gone through once and never held: of its 8.8 million passages those in memory are as many as the
    judgements name. So the pool is that of Dong et al. 2022 as we read them ("the relevant passages as answer
    candidates"); the whole collection is ranked by `endx encode` and `endx evaluate --index`. A judgement above 0 makes
    a passage right.

    Args:
      folder: of the three files, as published or packed as `.gz`.
      split: such as `train`, `dev` or `dev.small`; may be None where there is one file of judgements.

    Raises:
      EndxError: a file is missing or broken, or a judgement names what is not there.
    """
    path, right = _right(folder, split)
    queries = _queries(folder, path, right)
    named = {passage: line for passages in right.values() for passage, line in passages.items()}
    passages = _texts(_part(folder, COLLECTION), named, path)
    gathering = Gathering()
    for query, places in right.items():
        gathering.add(Named(queries[query], query), [Named(passages[name], name) for name in places], [], path)
    return gathering.records(path)


def judgements(folder: str, split: str | None = None) -> tuple[dict[str, str], dict[str, dict[str, int]]]:
    """The queries of a split that are judged, by id; and for each of them its right passages, by id.

    Arguments and errors are those of `read`; the collection is not looked at.
    """
    path, right = _right(folder, split)
    return _queries(folder, path, right), right


def _queries(folder: str, judgements: str, right: Mapping[str, Mapping[str, int]]) -> dict[str, str]:
    asked = {query: next(iter(passages.values())) for query, passages in right.items()}
    return _texts(_part(folder, f"queries.{_split_of(judgements)}.tsv"), asked, judgements)


def _right(folder: str, split: str | None) -> tuple[str, dict[str, dict[str, int]]]:
    """The file of a split's judgements, and for each query its right passages with the lines that say so."""
    path = _judgements_path(folder, split)
    right: dict[str, dict[str, int]] = {}
    for number, line in files.lines(path):
        columns = line.split()
        if not columns:
            continue
        if len(columns) != 4 or not columns[3].removeprefix("-").isdecimal():
            raise EndxError(f"{path}, line {number}: a judgement is a query's id, 0, a passage's id and a whole number")
        query, _, passage, score = columns
        if int(score) > 0:
            right.setdefault(query, {}).setdefault(passage, number)
    if not right:
        raise EndxError(f"{path}: no judgement is above 0")
    return path, right


def _judgements_path(folder: str, split: str | None) -> str:
    found = {_split_of(name): name for name in sorted(os.listdir(folder)) if _split_of(name)}
    if not found:
        raise EndxError(f"{folder}: no qrels.SPLIT.tsv in the folder, which is read as MS MARCO for its {COLLECTION}")
    return os.path.join(folder, found[chosen_split([*found], split, folder)])


def _split_of(path: str) -> str:
    """`dev.small` of `qrels.dev.small.tsv`; empty for another file."""
    name = os.path.basename(path).removesuffix(".gz")
    is_one = name.startswith("qrels.") and name.endswith(".tsv")
    return name.removeprefix("qrels.").removesuffix(".tsv") if is_one else ""


def _part(folder: str, name: str) -> str:
    path = files.perhaps_packed(os.path.join(folder, name))
    if not os.path.exists(path):
        raise EndxError(f"{folder}: no {name} in the folder, which is read as MS MARCO")
    return path


def _texts(path: str, wanted: Mapping[str, int], judgements: str) -> dict[str, str]:
    """Id -> text of those wanted, which are given with the lines of the judgements that name them."""
    found: dict[str, str] = {}
    for where, name, text in ids_and_texts(path):
        if name in wanted:
            if found.setdefault(name, text) != text:
                raise EndxError(f"{where}: the id {name!r} has stood before with another text")
            files.text(text, f"{where}: what {judgements}, line {wanted[name]}, names")
    missing = next((name for name in wanted if name not in found), None)
    if missing is not None:
        raise EndxError(f"{judgements}, line {wanted[missing]}: {missing!r} is not in {os.path.basename(path)}")
    return found


def ids_and_texts(path: str) -> Iterator[tuple[str, str, str]]:
    """Yields (where it stands, id, text) for each line of a table of two columns without header or quotes.

    Raises:
      EndxError: a line is none of these; blank lines are passed over.
    """
    for number, line in files.lines(path):
        where = f"{path}, line {number}"
        name, *texts = line.split("\t")
        if len(texts) == 1:
            yield where, files.text(name, f"{where}: the id"), files.text(texts[0], where, may_be_empty=True)
        elif line.strip():
            raise EndxError(f"{where}: {1 + len(texts)} tab-separated columns where each line has an id and a text")
