"""A retrieval set cut into its articles, as records on disk hold it, and put together again."""

import collections
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from endx_jax.data.records import RetrievalSet


def cut(records: RetrievalSet, homes: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yields the articles of a set, in the order of its candidates and then of its questions.

    An article is a mapping: `title`; `sentences` and `questions`, each a mapping of `index` (int32, the rows in the
    set), `id` and `text`; `answers` and `hard_negatives`, int32 [P, 2], pairs of the row of one of its questions and
    of a candidate, which may stand in another article.

    Args:
      records: a set with groups, the titles of its questions' articles, and hard negatives.
      homes: for each candidate the title of its article.
    """
    sentences, questions = _rows_of(homes), _rows_of(records.groups or ())
    for title in sentences | questions:
        asked = questions.get(title, [])
        yield {
            "title": title,
            "sentences": _table(sentences.get(title, []), records.candidate_ids, records.candidates),
            "questions": _table(asked, records.question_ids, records.questions),
            "answers": _pairs(asked, records.qrels),
            "hard_negatives": _pairs(asked, records.hard_negatives or ()),
        }


def join(articles: Iterable[Mapping[str, Any]]) -> RetrievalSet:
    """Puts articles together, in any order, to the set that they were cut from; texts may be bytes of UTF-8."""
    sentences: dict[int, tuple[str, str]] = {}
    questions: dict[int, tuple[str, str]] = {}
    groups: dict[int, str] = {}
    right: dict[int, list[int]] = collections.defaultdict(list)
    wrong: dict[int, list[int]] = collections.defaultdict(list)
    for article in articles:
        sentences |= _read_table(article["sentences"])
        asked = _read_table(article["questions"])
        questions |= asked
        groups |= dict.fromkeys(asked, _text(article["title"]))
        for column, pairs in ((right, article["answers"]), (wrong, article["hard_negatives"])):
            for question, sentence in pairs.tolist():
                column[question].append(sentence)
    rows = range(len(questions))
    candidates = [sentences[row] for row in range(len(sentences))]
    return RetrievalSet(
        questions=tuple(questions[row][1] for row in rows),
        candidates=tuple(text for _, text in candidates),
        qrels=tuple(tuple(right[row]) for row in rows),
        question_ids=tuple(questions[row][0] for row in rows),
        candidate_ids=tuple(name for name, _ in candidates),
        groups=tuple(groups[row] for row in rows),
        hard_negatives=tuple(tuple(wrong[row]) for row in rows),
    )


def _rows_of(titles: Iterable[str]) -> dict[str, list[int]]:
    rows: dict[str, list[int]] = {}
    for row, title in enumerate(titles):
        rows.setdefault(title, []).append(row)
    return rows


def _table(rows: Sequence[int], ids: Sequence[str], texts: Sequence[str]) -> dict[str, Any]:
    return {
        "index": np.array(rows, np.int32),
        "id": [ids[row] for row in rows],
        "text": [texts[row] for row in rows],
    }


def _read_table(table: Mapping[str, Any]) -> dict[int, tuple[str, str]]:
    columns = (table["index"].tolist(), map(_text, table["id"]), map(_text, table["text"]))
    return {index: (name, text) for index, name, text in zip(*columns, strict=True)}


def _pairs(rows: Sequence[int], column: Sequence[Sequence[int]]) -> np.ndarray:
    pairs = [(row, other) for row in rows for other in column[row]]
    return np.array(pairs, np.int32).reshape(len(pairs), 2)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
