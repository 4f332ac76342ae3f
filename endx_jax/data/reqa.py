"""Conversion of reading-comprehension data to sentence retrieval as in ReQA (Ahmad et al. 2019)."""

import collections
import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from endx_jax.data.paragraphs import Paragraph, split_sentences
from endx_jax.data.readers import formats
from endx_jax.data.records import RetrievalSet, RetrievalSetBuilder
from endx_jax.errors import EndxError
from endx_jax.settings import check_choice

POOLS = ("answers", "sentences")


@dataclasses.dataclass(frozen=True)
class Conversion:
    """Converted data and counts.

    Attributes:
      records: retrieval set.
      articles: article of each candidate's first occurrence.
      rows: number of pairs of a question and a right sentence before equal questions are merged, which papers report as
        the number of training pairs; `len(records.pairs)` is the number after merging.
      unplaced_answers: number of annotators' answers that are left out because they start outside all sentences.
      unplaced_questions: number of merged questions that are left out because they have no other answers.
    """

    records: RetrievalSet
    articles: tuple[str, ...]
    rows: int
    unplaced_answers: int
    unplaced_questions: int


Path = str | os.PathLike


def read(path: Path, pool: str = "answers", *, skip_invalid: bool = False) -> RetrievalSet:
    """Reads reading-comprehension data as questions and the sentences that answer them: see `convert`."""
    return convert(path, pool, skip_invalid=skip_invalid).records


from_squad = read


def convert(paths: Path | Sequence[Path], pool: str = "answers", *, skip_invalid: bool = False) -> Conversion:
    """Converts reading-comprehension data: see `convert_paragraphs`.

    Args:
      paths: file or folder in a format of `formats.paragraphs`, or several, which are concatenated.
      pool: `answers` or `sentences`.
      skip_invalid: see `formats.paragraphs`.

    Raises:
      EndxError: the format is unknown, the pool is unknown, or no answer starts in a sentence.
    """
    names = [os.fspath(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    found = (p for name in names for p in formats.paragraphs(name, skip_invalid=skip_invalid))
    return convert_paragraphs(found, names, pool)


def convert_paragraphs(paragraphs: Iterable[Paragraph], names: Sequence[str], pool: str = "answers") -> Conversion:
    """Converts paragraphs to questions and the sentences that answer them.

    A sentence is right for a question if an annotator's answer starts in it. Sentences are split by ReQA's rules,
    unless the data provide them. Equal sentences are merged into one candidate with the id `sP.S` of the first:
    sentence S of paragraph P, counted from 0, the same in both pools. Equal questions are merged too, with the id of
    the first and the right sentences of all; as in the papers' counts, questions that differ in white space are not
    equal. Both keep the order of the data. A question's group is the title of its article. Its hard negatives are the
    other sentences of its paragraphs that are in the pool. Questions without an answer are omitted.

    Args:
      paragraphs: paragraphs in order; those without questions are ignored.
      names: names of the data, for messages.
      pool: `answers`, the sentences that are right for a question, as in ENDX (Wang et al. 2021, Table 1); or
        `sentences`, all sentences of the paragraphs with a question, as in ReQA, which does not merge equal sentences.

    Raises:
      EndxError: the pool is unknown, or no answer in the data starts in a sentence.
    """
    check_choice("pool", pool, POOLS)
    merged = RetrievalSetBuilder()
    articles: list[str] = []
    rows = unplaced = 0
    for number, paragraph in enumerate(paragraphs):
        if not paragraph.questions:
            continue
        context = paragraph.context
        spans = split_sentences(context) if paragraph.sentences is None else paragraph.sentences
        sentences = [merged.candidate(context[a:b], f"s{number}.{place}") for place, (a, b) in enumerate(spans)]
        articles += [paragraph.article] * (len(merged.candidates) - len(articles))
        for question in paragraph.questions:
            if question.answers:
                found = [
                    next((place for place, (first, end) in enumerate(spans) if first <= answer.start < end), None)
                    for answer in question.answers
                ]
                right = {sentences[place] for place in found if place is not None}
                unplaced += found.count(None)
                rows += len(right)
                row = merged.question(question.text, question.id, paragraph.article)
                merged.wrong[row].update(sentences)
                for sentence in right:
                    merged.judge(row, sentence)
    everything = merged.build(hard_negatives=True)
    records = everything.select_questions([row for row, right in enumerate(everything.qrels) if right])
    if not records.questions:
        raise EndxError(f"{' and '.join(names)}: no question in the file has an answer that starts in a sentence")
    if pool == "answers":
        kept = sorted({sentence for right in records.qrels for sentence in right})
        records, articles = records.with_pool(kept), [articles[sentence] for sentence in kept]
    return Conversion(records, tuple(articles), rows, unplaced, len(everything.questions) - len(records.questions))


def to_articles(records: RetrievalSet, titles: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yields the articles of a set, the records on disk, in the order of its candidates and then of its questions.

    An article is a mapping: `title`; `sentences` and `questions`, each a mapping of `index` (int32, rows in the set),
    `id` and `text`; `answers` and `hard_negatives`, int32 [P, 2], pairs of the row of one of its questions and the row
    of a candidate, which may be in another article.

    Args:
      records: retrieval set with hard negatives, and with article titles as groups.
      titles: title of each candidate's article.
    """
    sentences, questions = _rows_of(titles), _rows_of(records.groups or ())
    for title in sentences | questions:
        rows = questions.get(title, [])
        yield {
            "title": title,
            "sentences": _table(sentences.get(title, []), records.candidate_ids, records.candidates),
            "questions": _table(rows, records.question_ids, records.questions),
            "answers": _pairs(rows, records.qrels),
            "hard_negatives": _pairs(rows, records.hard_negatives or ()),
        }


def from_articles(articles: Iterable[Mapping[str, Any]]) -> RetrievalSet:
    """Returns the set of the articles of `to_articles`, given in any order; texts may be UTF-8 bytes."""
    sentences: dict[int, tuple[str, str]] = {}
    questions: dict[int, tuple[str, str]] = {}
    groups: dict[int, str] = {}
    right: dict[int, list[int]] = collections.defaultdict(list)
    wrong: dict[int, list[int]] = collections.defaultdict(list)
    for article in articles:
        sentences |= _read_table(article["sentences"])
        of_article = _read_table(article["questions"])
        questions |= of_article
        groups |= dict.fromkeys(of_article, _text(article["title"]))
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
    return {"index": np.array(rows, np.int32), "id": [ids[row] for row in rows], "text": [texts[row] for row in rows]}


def _read_table(table: Mapping[str, Any]) -> dict[int, tuple[str, str]]:
    columns = (table["index"].tolist(), map(_text, table["id"]), map(_text, table["text"]))
    return {index: (name, text) for index, name, text in zip(*columns, strict=True)}


def _pairs(rows: Sequence[int], column: Sequence[Sequence[int]]) -> np.ndarray:
    pairs = [(row, other) for row in rows for other in column[row]]
    return np.array(pairs, np.int32).reshape(len(pairs), 2)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
