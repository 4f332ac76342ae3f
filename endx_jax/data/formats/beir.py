"""Reading of BEIR folders: `corpus.jsonl`, `queries.jsonl`, `qrels/SPLIT.tsv` or `qrels.tsv`.

Ids and texts may have other names, which are in `columns.NAMES`. The hub's form, as of NanoBEIR, has the same rows in
parquet files: `corpus/SPLIT-*.parquet`, `queries/...` and `qrels/...`, of which a single split of corpus and queries
belongs to all judgements.

`endx mine` adds `negatives/SPLIT.tsv`, hard negatives, and `scores/SPLIT.tsv`, scores of a teacher: see `mined`.
"""

import contextlib
import csv
import math
import os
import re
from collections.abc import Container, Iterator, Mapping, Sequence

from endx_jax import json_files
from endx_jax.data.formats import columns, folders, row_files, tables, text_files
from endx_jax.data.formats.folders import BEIR_PARTS
from endx_jax.data.formats.format import Format, Place, ReadOptions
from endx_jax.data.formats.tables import text_of
from endx_jax.data.formats.text_files import InvalidRows
from endx_jax.data.sets.documents import Document
from endx_jax.data.sets.examples import Judgements
from endx_jax.data.sets.records import RetrievalSet, RetrievalSetBuilder
from endx_jax.errors import EndxError

HEADER = "query-id\tcorpus-id\tscore"
NEGATIVES_HEADER = f"{HEADER}\trank"


def read_beir(place: Place, options: ReadOptions, invalid: InvalidRows) -> RetrievalSet:
    """Reads one split; a document is right for a query if its judgement has a score above 0, which is its grade.

    A candidate's text is `title`, a space, `text`. Only queries with a right document become questions. Equal texts
    are merged: documents with equal text become one candidate with the id of the first one, which is right for a query
    if any of them is, with the highest of their grades; queries are merged in the same way. A pool with duplicates is
    therefore smaller than in tools that rank ids. A document with the id of a query is not ranked for that query, as
    in BEIR's own evaluation (`RetrievalSet.excluded`), unless it is judged right.

    Three extensions of `endx mine` are read as well: `negatives/SPLIT.tsv` with hard negatives of queries,
    `scores/SPLIT.tsv` with a teacher's scores of all right documents and negatives, and `metadata.group` of queries,
    which becomes `groups` if every question has one.

    The pool has the whole corpus; unless `options.whole`, only the documents in judgements and negatives, and those
    with the id of a query, are kept.

    Raises:
      EndxError: a file is missing or invalid, a judgement or negative has an unknown id, a right document is empty, or
        a score is missing or not finite.
    """
    folder = place.path
    split, judged = _judgements_path(folder, options.split)
    negatives = os.path.join(folder, "negatives", f"{split}.tsv")
    asked = _asked(judged)
    named = None if options.whole else asked | _named(judged, negatives)
    documents = _documents(_part(folder, "corpus", split), named, invalid)
    queries, groups = _queries(_part(folder, "queries", split), asked, invalid)
    right = _right(judged, queries, documents, invalid)
    wrong = _negatives(negatives, queries, documents) if os.path.exists(negatives) else None
    scores_path = os.path.join(folder, "scores", f"{split}.tsv")
    scores = _scores(scores_path) if os.path.exists(scores_path) else None
    merged = RetrievalSetBuilder()
    for name, text in documents.items():
        merged.candidate(text, name)
    for name, text in queries.items():
        if name in right:
            listed = [*right[name], *(wrong or {}).get(name, ())]
            texts, count = [documents[document] for document in listed], len(right[name])
            merged.add(
                text,
                texts[:count],
                texts[count:],
                None if scores is None else [scores.get((name, document), math.nan) for document in listed],
                name,
                groups.get(name),
                grades=[*right[name].values()],
                excluded=[documents[name]] if name in documents else (),
            )
    records = merged.build(hard_negatives=wrong is not None)
    if scores is not None:
        _check_scored(records, scores_path)
    return records


def sets_of(folder: str) -> dict[str, str]:
    """Returns the BEIR folders in a suite, such as NanoBEIR, by name; none if `folder` is not a suite.

    A suite has no corpus, queries and judgements of its own, and its folders have. All of its folders are its sets,
    except those whose names begin with a dot.
    """
    if not os.path.isdir(folder) or _has_parts(folder):
        return {}
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    sets = {name: os.path.join(folder, name) for name in names}
    return sets if any(map(_has_parts, sets.values())) else {}


def _splits_as_sets(place: Place, split: str | None) -> dict[str, tuple[str, str]]:
    """Returns the splits of a folder that has a corpus for each, as NanoBEIR in one repository; else none."""
    names, judged = ({*_tables(os.path.join(place.path, part))} for part in ("corpus", "qrels"))
    if split or len(names) < 2 or names != judged or names & {"train", "dev", "validation", "test"}:
        return {}
    return {name: (place.path, name) for name in sorted(names)}


def _folders_as_sets(place: Place, split: str | None) -> dict[str, tuple[str, str]]:
    return {name: (folder, split or default_split(folder)) for name, folder in sets_of(place.path).items()}


def default_split(folder: str) -> str:
    """Returns the split of a BEIR folder with only one; `test` for other folders."""
    splits = [*_splits(folder)]
    return splits[0] if len(splits) == 1 else "test"


def _has_parts(folder: str) -> bool:
    """Returns true if a folder has the files of a BEIR folder, or some of them."""
    return any(os.path.exists(os.path.join(folder, part)) for part in BEIR_PARTS)


def judgements(place: Place, options: ReadOptions, invalid: InvalidRows) -> Judgements:
    """Returns the queries of a split that have a right document; the corpus is not read.

    Queries and documents with equal text are not merged, as in other tools that rank ids. The document with a query's
    own id is excluded, as by `read_beir`.
    """
    split, path = _judgements_path(place.path, options.split)
    queries, _ = _queries(_part(place.path, "queries", split), _asked(path), invalid)
    right = _right(path, queries, None, invalid)
    excluded = tuple(() if name in grades else (name,) for name, grades in right.items())
    return Judgements(tuple(right), tuple(queries[name] for name in right), tuple(right.values()), excluded)


def _right(
    path: str, queries: Container[str], documents: Mapping[str, str] | None, invalid: InvalidRows
) -> dict[str, dict[str, int]]:
    """Returns the highest grade of each right document by query; `documents` are not checked if None."""
    right: dict[str, dict[str, int]] = {}
    for query, document, score, where in _judgements(path, invalid):
        with invalid.row():
            _check_known(query, document, queries, documents, where)
            if score > 0 and documents is not None and not documents[document]:
                raise EndxError(f"{where}: document {document[:100]!r} is judged right, but has neither title nor text")
            if score > 0:
                grades = right.setdefault(query, {})
                grades[document] = max(score, grades.get(document, score))
    if not right:
        raise EndxError(f"{path}: no judgement has a score above 0" + (invalid.report and f"; {invalid.report}"))
    return right


def _scores(path: str) -> dict[tuple[str, str], float]:
    """Returns the scores of documents by query and document."""
    scores: dict[tuple[str, str], float] = {}
    for where, (query, document, written) in _table(path, HEADER):
        try:
            score = float(written)
        except ValueError:
            score = math.nan
        if not abs(score) <= row_files.MOST_SCORE:
            raise EndxError(f"{where}: the score {written[:30]!r} is not a finite number of float32")
        scores[query, document] = score
    return scores


def _check_scored(records: RetrievalSet, path: str) -> None:
    scores: Sequence[Mapping[int, float]] = records.scores or [{}] * len(records.questions)
    for row, right in enumerate(records.qrels):
        wrong = records.hard_negatives[row] if records.hard_negatives else ()
        if missing := [other for other in (*right, *wrong) if other not in scores[row]]:
            raise EndxError(
                f"{path}: no score of document {records.candidate_ids[missing[0]][:100]!r} for query "
                f"{records.question_ids[row][:100]!r}; score all right documents and negatives, or remove the file"
            )


def _check_known(query: str, document: str, queries: Container, documents: Container | None, where: str) -> None:
    if query not in queries:
        raise EndxError(f"{where}: query {query[:100]!r} is not in queries.jsonl")
    if documents is not None and document not in documents:
        raise EndxError(f"{where}: document {document[:100]!r} is not in corpus.jsonl")


def _judgements_path(folder: str, split: str | None) -> tuple[str, str]:
    """Returns the split and the file of its judgements."""
    splits = _splits(folder)
    if not splits:
        raise _lacks(folder, "qrels", ", with judgements in qrels/test.tsv")
    split = folders.chosen_split(sorted(splits), split, os.path.join(folder, "qrels"))
    return split, splits[split]


def _splits(folder: str) -> dict[str, str]:
    """Returns the files of judgements by split; `qrels.tsv` is the split `test`."""
    qrels = os.path.join(folder, "qrels")
    if not os.path.isdir(qrels):
        return {"test": f"{qrels}.tsv"} if os.path.exists(f"{qrels}.tsv") else {}
    names = {name.removesuffix(".tsv"): name for name in os.listdir(qrels) if name.endswith(".tsv")} or _tables(qrels)
    return {split: os.path.join(qrels, name) for split, name in names.items()}


def _part(folder: str, name: str, split: str | None) -> str:
    """Returns the file of a part of a folder, `corpus` or `queries`."""
    path = folders.plain_or_gzip(os.path.join(folder, f"{name}.jsonl"))
    if os.path.exists(path):
        return path
    tables = _tables(os.path.join(folder, name))
    if not tables:
        raise _lacks(folder, f"{name}.jsonl")
    chosen = folders.chosen_split(sorted(tables), split if len(tables) > 1 else None, path)
    return os.path.join(folder, name, tables[chosen])


def _lacks(folder: str, name: str, place: str = "") -> EndxError:
    """Returns the error for a folder without a part."""
    there = folders.endings_in(folder)
    return EndxError(f"{folder}: no {name} in the folder, which is read as BEIR{place}; it has {there}")


def _tables(folder: str) -> dict[str, str]:
    """Returns the parquet files of a folder by split."""
    files: dict[str, str] = {}
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        shard = re.fullmatch(r"(.+?)(-\d+-of-\d+)?\.parquet", name)
        if shard and files.setdefault(shard[1], name) != name:
            raise EndxError(f"{folder}: {shard[1]} has several files, {files[shard[1]]} and {name}: join them into one")
    return files


def _named(judgements: str, negatives: str) -> set[str]:
    """Returns the ids of documents that are judged or are hard negatives."""
    named = {columns[1] for _, columns in judged_rows(judgements)}
    if os.path.exists(negatives):
        named.update(columns[1] for _, columns in _table(negatives, NEGATIVES_HEADER))
    return named


def _asked(judgements: str) -> set[str]:
    """Returns the ids of the queries with a judgement above 0, or one that is not a number."""
    return {query for _, (query, _, score) in judged_rows(judgements) if not re.fullmatch(r"-.*|0(\.0)?", score)}


def _documents(path: str, named: Container[str] | None, invalid: InvalidRows) -> dict[str, str]:
    """Returns title and text, which may be empty, of the documents in `named`, or of all if it is None, by id."""
    documents: dict[str, str] = {}
    for _, where, row in row_files.read_rows(path, invalid):
        with invalid.row():
            title = text_of(row, "title", where) if "title" in row else ""
            key = "text" if "text" in row else next(iter(columns.find(columns.TEXT, row)), "text")
            text = text_of(row, key, where)
            name = _id(columns.ID, row, where)
            if named is None or name in named:
                _add(documents, name, f"{title} {text}".strip(), where)
    return documents


def _queries(path: str, asked: Container[str], invalid: InvalidRows) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the text of all queries by id, and the group of those with one; those in `asked` must have a text."""
    queries: dict[str, str] = {}
    groups: dict[str, str] = {}
    for _, where, row in row_files.read_rows(path, invalid):
        with invalid.row():
            name = _id(columns.QUESTION_ID, row, where)
            key = "text" if "text" in row else next(iter(columns.find(columns.SEARCHED, row)), "text")
            _add(queries, name, text_of(row, key, where), where)
            if not queries[name] and name in asked:
                raise EndxError(f"{where}: {key!r} is empty")
            metadata = row.get("metadata")
            if isinstance(metadata, dict) and isinstance(metadata.get("group"), str):
                groups[name] = json_files.as_text(metadata["group"], f"{where}: the group", may_be_empty=True)
    return queries, groups


def _add(texts: dict[str, str], name: str, text: str, where: str) -> None:
    if texts.setdefault(name, text) != text:
        raise EndxError(f"{where}: _id {name[:100]!r} belongs to two texts")


def _id(side: str, row: dict, where: str) -> str:
    key = "_id" if "_id" in row else next(iter(columns.find(side, row)), "_id")
    return json_files.as_text(json_files.identifier_at(row, key, where), f"{where}: {key!r}")


def _judgements(path: str, invalid: InvalidRows) -> Iterator[tuple[str, str, int, str]]:
    """Yields (query id, document id, score, place)."""
    for where, (query, document, score) in judged_rows(path):
        number = None
        with invalid.row():
            number = row_files.whole_number(score.removesuffix(".0"), f"{where}: score")
        if number is not None:
            yield query, document, number, where


def judged_rows(path: str) -> Iterator[tuple[str, list[str]]]:
    """Yields (location, query id, document id and score as text) of judgements; tables without scores have ones."""
    if not path.endswith(".parquet"):
        yield from _table(path, HEADER)
        return
    for _, where, row in row_files.read_rows(path):
        query, document = (json_files.identifier_at(row, name, where) for name in ("query-id", "corpus-id"))
        yield where, [query, document, f"{json_files.number(row.get('score', 1), where):g}"]


def _negatives(path: str, queries: Container, documents: Container) -> dict[str, list[str]]:
    """Returns the ids of the hard negatives of each query by id; their scores and ranks are ignored."""
    negatives: dict[str, list[str]] = {}
    for where, (query, document, _, _) in _table(path, NEGATIVES_HEADER):
        _check_known(query, document, queries, documents, where)
        negatives.setdefault(query, []).append(document)
    return negatives


def _table(path: str, header: str) -> Iterator[tuple[str, list[str]]]:
    """Yields (location, columns) of each line below the header; skips blank lines."""
    names = header.split("\t")
    for number, line in text_files.lines(path):
        where = f"{path}, line {number}"
        cells = line.split("\t")
        if '"' in line and len(line) <= csv.field_size_limit():  # beir and pandas quote such ids as in CSV
            with contextlib.suppress(csv.Error):
                quoted = next(csv.reader([line], delimiter="\t"))
                cells = quoted if len(quoted) == len(names) else cells
        cells = [cell.strip() for cell in cells]
        if number == 1:
            ids = columns.find(columns.QUESTION_ID, cells[:1]) and columns.find(columns.ID, cells[1:2])
            fits = len(cells) == len(names) and cells[2].casefold() in columns.JUDGING and cells[3:] == names[3:]
            if not (ids and fits):
                raise EndxError(f"{where}: the header must be {header!r}")
        elif cells != [""]:
            if len(cells) != len(names):
                raise EndxError(f"{where}: {len(cells)} tab-separated columns where the header has {len(names)}")
            yield where, cells


def _matches(place: Place) -> bool:
    """Returns true for a folder with BEIR's files; one of documents may have folders of the same names."""
    parts = any(os.path.exists(place.part(name)) for name in ("corpus", "qrels"))
    return place.has("corpus.jsonl", "queries.jsonl") or (parts and not place.documents)


def _documents_of(place: Place, options: ReadOptions, invalid: InvalidRows) -> Iterator[tuple[str, Document]]:
    return tables.documents(Place(_part(place.path, "corpus", options.split)), options, invalid)


def _refuse(place: Place, *_) -> RetrievalSet:
    names = [*sets_of(place.path)]
    raise EndxError(
        f"{place.path} holds several data sets ({', '.join(names[:3])}{', ...' * (len(names) > 3)}): name one of them; "
        "only `endx evaluate --data` and evaluation.sets take them all"
    )


BEIR = Format(
    "beir",
    _matches,
    records=read_beir,
    documents=_documents_of,
    judgements=judgements,
    default_split=lambda place: default_split(place.path),
    sets=_splits_as_sets,
)
SUITE = Format("suite", lambda place: bool(sets_of(place.path)), records=_refuse, sets=_folders_as_sets)
