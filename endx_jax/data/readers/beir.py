"""BEIR folders: `corpus.jsonl`, `queries.jsonl` and `qrels/SPLIT.tsv`."""

import os
from collections.abc import Iterator

from endx_jax.data.readers import files
from endx_jax.data.records import RetrievalSet
from endx_jax.errors import EndxError

HEADER = "query-id\tcorpus-id\tscore"


def read(folder: str, split: str | None = None) -> RetrievalSet:
    """Reads one split's judgements over the whole corpus; a score above 0 makes a document right for a query.

    A candidate's text is `title`, a space, `text`. Only queries with a right document become questions. As everywhere
    in this library the tables hold each text once: documents of equal text become one candidate under the first one's
    id, right for a query where any of them is, and queries of equal text become one question likewise. So a pool with
    duplicates is smaller here than in tools that rank ids.

    Args:
      folder: the folder of the three parts.
      split: the name of a file in `qrels` without `.tsv`; may be None where there is one file only.

    Raises:
      EndxError: a part is missing or broken, a judgement names an id that is not there, or a right document is empty.
    """
    judgements = _judgements_path(folder, split)
    documents = _documents(os.path.join(folder, "corpus.jsonl"))
    queries = _queries(os.path.join(folder, "queries.jsonl"))
    right: dict[str, list[str]] = {}
    for query, document, score, where in _judgements(judgements):
        if query not in queries:
            raise EndxError(f"{where}: query {query!r} is not in queries.jsonl")
        if document not in documents:
            raise EndxError(f"{where}: document {document!r} is not in corpus.jsonl")
        if score > 0 and not documents[document]:
            raise EndxError(f"{where}: document {document!r} is called right, but has neither title nor text")
        if score > 0:
            right.setdefault(query, []).append(document)
    if not right:
        raise EndxError(f"{judgements}: no judgement has a score above 0")
    return _merge(documents, queries, right)


def _merge(documents: dict[str, str], queries: dict[str, str], right: dict[str, list[str]]) -> RetrievalSet:
    candidates: dict[str, int] = {}
    row = {name: candidates.setdefault(text, len(candidates)) for name, text in documents.items()}
    questions: dict[str, set[int]] = {}
    question_ids: dict[str, str] = {}
    for name, text in queries.items():
        if name in right:
            questions.setdefault(text, set()).update(row[document] for document in right[name])
            question_ids.setdefault(text, name)
    first: dict[int, str] = {}
    for name, candidate in row.items():
        first.setdefault(candidate, name)
    return RetrievalSet(
        questions=tuple(questions),
        candidates=tuple(candidates),
        qrels=tuple(tuple(sorted(found)) for found in questions.values()),
        question_ids=tuple(question_ids.values()),
        candidate_ids=tuple(first.values()),
    )


def _judgements_path(folder: str, split: str | None) -> str:
    qrels = os.path.join(folder, "qrels")
    for needed in (os.path.join(folder, "corpus.jsonl"), os.path.join(folder, "queries.jsonl"), qrels):
        if not os.path.exists(needed):
            raise EndxError(f"{folder}: a folder is read as BEIR, and this one has no {os.path.basename(needed)}")
    found = sorted(name.removesuffix(".tsv") for name in os.listdir(qrels) if name.endswith(".tsv"))
    if not found:
        raise EndxError(f"{qrels}: no .tsv file in the folder")
    if split is None and len(found) > 1:
        raise EndxError(f"{qrels}: several splits; give one of them as split: {', '.join(found)}")
    if split is not None and split not in found:
        raise EndxError(f"{qrels}: no split {split!r}; choose with data.split or --split from {', '.join(found)}")
    return os.path.join(qrels, f"{split or found[0]}.tsv")


def _documents(path: str) -> dict[str, str]:
    """Id -> title and text. A document may be empty, as some are in published corpora, as long as none needs it."""
    found: dict[str, str] = {}
    for number, row in files.objects(path):
        where = f"{path}, line {number}"
        title = files.text(row.get("title", ""), f"{where}: 'title'", may_be_empty=True)
        text = files.text(_get(row, "text", where), f"{where}: 'text'", may_be_empty=True)
        _add(found, row, f"{title} {text}".strip(), where)
    return found


def _queries(path: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for number, row in files.objects(path):
        where = f"{path}, line {number}"
        _add(found, row, files.text(_get(row, "text", where), f"{where}: 'text'"), where)
    return found


def _add(found: dict[str, str], row: dict, text: str, where: str) -> None:
    name = files.text(_get(row, "_id", where), f"{where}: '_id'")
    if found.setdefault(name, text) != text:
        raise EndxError(f"{where}: _id {name!r} has stood before with another text")


def _get(row: dict, key: str, where: str) -> object:
    if key not in row:
        raise EndxError(f"{where} has no {key!r}")
    return row[key]


def _judgements(path: str) -> Iterator[tuple[str, str, int, str]]:
    """Yields (query id, document id, score, where it stands)."""
    for number, line in files.lines(path):
        where = f"{path}, line {number}"
        columns = [column.strip() for column in line.split("\t")]
        if number == 1:
            if columns != HEADER.split("\t"):
                raise EndxError(f"{where}: the header must be {HEADER!r}")
        elif columns != [""]:
            if len(columns) != 3:
                raise EndxError(f"{where}: {len(columns)} tab-separated columns where the header has 3")
            query, document, score = columns
            if not score.removeprefix("-").isdecimal():
                raise EndxError(f"{where}: score {score!r} is not a whole number")
            yield query, document, int(score), where
