"""BEIR folders: `corpus.jsonl`, `queries.jsonl`, `qrels/SPLIT.tsv`, and perhaps `negatives/SPLIT.tsv`."""

import os
from collections.abc import Container, Iterator, Mapping, Sequence

from endx_jax.data.readers import files
from endx_jax.data.readers.folders import chosen_split
from endx_jax.data.records import RetrievalSet
from endx_jax.errors import EndxError

HEADER = "query-id\tcorpus-id\tscore"
# Of hard negatives, which are no part of BEIR: see `data.mined`.
NEGATIVES_HEADER = f"{HEADER}\trank"


def read(folder: str, split: str | None = None, *, whole: bool = True) -> RetrievalSet:
    """Reads one split's judgements over the whole corpus; a score above 0 makes a document right for a query.

    A candidate's text is `title`, a space, `text`. Only queries with a right document become questions. As everywhere
    in this library the tables hold each text once: documents of equal text become one candidate under the first one's
    id, right for a query where any of them is, and queries of equal text become one question likewise. So a pool with
    duplicates is smaller here than in tools that rank ids.

    Two things are read that BEIR does not have, as `endx mine` writes them: `negatives/SPLIT.tsv` names documents that
    are hard negatives of queries, and `metadata.group` of a query what it was asked about, which counts where every
    question has one.

    Args:
      folder: the folder of the three parts; corpus and queries may be packed as `.gz`.
      split: the name of a file in `qrels` without `.tsv`; may be None where there is one file only.
      whole: whether the pool is the whole corpus; else it is what judgements and negatives name, and nothing else of
        the corpus is held in memory.

    Raises:
      EndxError: a part is missing or broken, a judgement or a negative names an id that is not there, or a right
        document is empty.
    """
    judgements = _judgements_path(folder, split)
    negatives = os.path.join(folder, "negatives", os.path.basename(judgements))
    documents = _documents(_part(folder, "corpus.jsonl"), None if whole else _named(judgements, negatives))
    queries, groups = _queries(_part(folder, "queries.jsonl"))
    right: dict[str, list[str]] = {}
    for query, document, score, where in _judgements(judgements):
        _check_known(query, document, queries, documents, where)
        if score > 0 and not documents[document]:
            raise EndxError(f"{where}: document {document!r} is called right, but has neither title nor text")
        if score > 0:
            right.setdefault(query, []).append(document)
    if not right:
        raise EndxError(f"{judgements}: no judgement has a score above 0")
    wrong = _negatives(negatives, queries, documents) if os.path.exists(negatives) else None
    return _merge(documents, queries, right, wrong, groups)


def judgements(folder: str, split: str | None = None) -> tuple[dict[str, str], dict[str, list[str]]]:
    """The queries of a split that have a right document, by id; and for each of them those documents' ids.

    Arguments and errors are those of `read`; the corpus is not looked at.
    """
    path = _judgements_path(folder, split)
    queries, _ = _queries(_part(folder, "queries.jsonl"))
    right: dict[str, list[str]] = {}
    for query, document, score, where in _judgements(path):
        if query not in queries:
            raise EndxError(f"{where}: query {query!r} is not in queries.jsonl")
        if score > 0 and document not in right.setdefault(query, []):
            right[query].append(document)
    right = {query: documents for query, documents in right.items() if documents}
    if not right:
        raise EndxError(f"{path}: no judgement has a score above 0")
    return {query: queries[query] for query in right}, right


def _merge(
    documents: Mapping[str, str],
    queries: Mapping[str, str],
    right: Mapping[str, Sequence[str]],
    wrong: Mapping[str, Sequence[str]] | None,
    groups: Mapping[str, str],
) -> RetrievalSet:
    candidates: dict[str, int] = {}
    row = {name: candidates.setdefault(text, len(candidates)) for name, text in documents.items()}
    first: dict[int, str] = {}
    for name, candidate in row.items():
        first.setdefault(candidate, name)
    asked: dict[str, list[str]] = {}
    for name, text in queries.items():
        if name in right:
            asked.setdefault(text, []).append(name)
    qrels = [{row[document] for name in names for document in right[name]} for names in asked.values()]
    negatives = [
        {row[document] for name in names for document in (wrong or {}).get(name, ())} - own
        for names, own in zip(asked.values(), qrels, strict=True)
    ]
    ids = tuple(names[0] for names in asked.values())
    return RetrievalSet(
        questions=tuple(asked),
        candidates=tuple(candidates),
        qrels=tuple(tuple(sorted(own)) for own in qrels),
        question_ids=ids,
        candidate_ids=tuple(first.values()),
        groups=tuple(groups[name] for name in ids) if all(name in groups for name in ids) else None,
        hard_negatives=None if wrong is None else tuple(tuple(sorted(own)) for own in negatives),
    )


def _check_known(query: str, document: str, queries: Container, documents: Container, where: str) -> None:
    if query not in queries:
        raise EndxError(f"{where}: query {query!r} is not in queries.jsonl")
    if document not in documents:
        raise EndxError(f"{where}: document {document!r} is not in corpus.jsonl")


def _judgements_path(folder: str, split: str | None) -> str:
    qrels = os.path.join(folder, "qrels")
    for needed in (_part(folder, "corpus.jsonl"), _part(folder, "queries.jsonl"), qrels):
        if not os.path.exists(needed):
            raise EndxError(f"{folder}: a folder is read as BEIR, and this one has no {os.path.basename(needed)}")
    found = sorted(name.removesuffix(".tsv") for name in os.listdir(qrels) if name.endswith(".tsv"))
    if not found:
        raise EndxError(f"{qrels}: no .tsv file in the folder")
    return os.path.join(qrels, f"{chosen_split(found, split, qrels)}.tsv")


def _part(folder: str, name: str) -> str:
    return files.perhaps_packed(os.path.join(folder, name))


def _named(judgements: str, negatives: str) -> set[str]:
    """The ids of documents that are judged, or hard negatives."""
    named = {document for _, document, _, _ in _judgements(judgements)}
    if os.path.exists(negatives):
        named.update(columns[1] for _, columns in _table(negatives, NEGATIVES_HEADER))
    return named


def _documents(path: str, named: Container[str] | None) -> dict[str, str]:
    """Id -> title and text, of those named; None: of all.

    A document may be empty, as some are in published corpora, as long as none needs it.
    """
    found: dict[str, str] = {}
    for number, row in files.objects(path):
        where = f"{path}, line {number}"
        title = files.text(row.get("title", ""), f"{where}: 'title'", may_be_empty=True)
        text = files.text(_get(row, "text", where), f"{where}: 'text'", may_be_empty=True)
        if named is None or row.get("_id") in named:
            _add(found, row, f"{title} {text}".strip(), where)
    return found


def _queries(path: str) -> tuple[dict[str, str], dict[str, str]]:
    """Id -> text, and id -> group of those that have one."""
    found: dict[str, str] = {}
    groups: dict[str, str] = {}
    for number, row in files.objects(path):
        where = f"{path}, line {number}"
        name = _add(found, row, files.text(_get(row, "text", where), f"{where}: 'text'"), where)
        metadata = row.get("metadata")
        if isinstance(metadata, dict) and isinstance(metadata.get("group"), str):
            groups[name] = metadata["group"]
    return found, groups


def _add(found: dict[str, str], row: dict, text: str, where: str) -> str:
    name = files.text(_get(row, "_id", where), f"{where}: '_id'")
    if found.setdefault(name, text) != text:
        raise EndxError(f"{where}: _id {name!r} has stood before with another text")
    return name


def _get(row: dict, key: str, where: str) -> object:
    if key not in row:
        raise EndxError(f"{where} has no {key!r}")
    return row[key]


def _judgements(path: str) -> Iterator[tuple[str, str, int, str]]:
    """Yields (query id, document id, score, where it stands)."""
    for where, (query, document, score) in _table(path, HEADER):
        if not score.removeprefix("-").isdecimal():
            raise EndxError(f"{where}: score {score!r} is not a whole number")
        yield query, document, int(score), where


def _negatives(path: str, queries: Container, documents: Container) -> dict[str, list[str]]:
    """Query id -> ids of its hard negatives; their scores and ranks are for people."""
    found: dict[str, list[str]] = {}
    for where, (query, document, _, _) in _table(path, NEGATIVES_HEADER):
        _check_known(query, document, queries, documents, where)
        found.setdefault(query, []).append(document)
    return found


def _table(path: str, header: str) -> Iterator[tuple[str, list[str]]]:
    """Yields the columns of each line below the header, and where they stand; blank lines are passed over."""
    names = header.split("\t")
    for number, line in files.lines(path):
        where = f"{path}, line {number}"
        columns = [column.strip() for column in line.split("\t")]
        if number == 1:
            if columns != names:
                raise EndxError(f"{where}: the header must be {header!r}")
        elif columns != [""]:
            if len(columns) != len(names):
                raise EndxError(f"{where}: {len(columns)} tab-separated columns where the header has {len(names)}")
            yield where, columns
