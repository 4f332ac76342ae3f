"""Splits and subsets of retrieval sets, chosen by hashes so that they are the same on every machine."""

import collections
import dataclasses
import hashlib
import itertools
import re
from collections.abc import Sequence, Set

import numpy as np

from endx_jax.data.records import RetrievalSet, questions_by_candidate
from endx_jax.data.token_store import TokenStore
from endx_jax.errors import EndxError


@dataclasses.dataclass(frozen=True)
class Splits:
    """Train, validation and test sets; see `split` for their overlap. The train set may be on disk."""

    train: RetrievalSet | TokenStore
    validation: RetrievalSet
    test: RetrievalSet


def split(records: RetrievalSet, *, validation: float, test: float, at_least_one: bool = False) -> Splits:
    """Splits by sha256; questions that share a group or a right candidate are in the same split, to prevent leakage.

    The unit is a connected component of questions, their groups and their right candidates. With m the smallest hash
    among its n groups, or among its n candidates' texts if there are no groups, its position is 1 - (1 - m)^n, which is
    uniform in [0, 1) for every n. If every question has one answer, the position is the hash of the answer, and new
    data does not move questions to another split. If questions have several answers, new data can join two components
    of different splits and so move one of them.

    Fractions hold for components in expectation; the number of questions varies around them. The pool of each split is
    the right candidates and hard negatives of its own questions; other candidates are in no pool.

    Args:
      records: retrieval set; its order is kept.
      validation: share held out for model selection, in [0, 1).
      test: share held out for testing, in [0, 1). Changing `validation` does not change the test split.
      at_least_one: true to hold out the component with the smallest position where none falls into a split, as of few
        documents.

    Raises:
      EndxError: the fractions are out of range or leave nothing for training, or a split is empty.
    """
    if not (0 <= validation < 1 and 0 <= test < 1 and validation + test < 1):
        raise EndxError(
            f"the validation and test fractions must be in [0, 1) with a sum below 1, not {validation} and {test}"
        )
    rows: dict[str, list[int]] = {"train": [], "validation": [], "test": []}
    places = _places(records)
    test_end, validation_end = test, test + validation
    if at_least_one and test:
        test_end = max(test_end, np.nextafter(min(places), 1))
    if at_least_one and validation:
        others = (place for place in places if place >= test_end)
        validation_end = max(validation_end, np.nextafter(min(others, default=0), 1))
    for question, place in enumerate(places):
        name = "test" if place < test_end else "validation" if place < validation_end else "train"
        rows[name].append(question)
    for name, fraction in (("train", 1 - validation - test), ("validation", validation), ("test", test)):
        if fraction > 0 and not rows[name]:
            largest = max(collections.Counter(places).values(), default=0)
            reason = "there are too few for this share; use more data or another share, or 0 for no such split"
            if largest > 1 and largest * 20 > len(places):  # a component exceeds the usual share of a split
                reason = (
                    f"those with a common {'article or ' * bool(records.groups)}answer stay together, here up to "
                    f"{largest:,}; correct data.answer_column or set data.held_out_by=questions"
                )
            raise EndxError(
                f"none of the {len(places)} questions fell into {name}, a share of {fraction:.3g}: {reason}"
            )
    return Splits(**{name: records.subset(kept) for name, kept in rows.items()})


def split_questions(records: RetrievalSet, *, validation: float, test: float) -> Splits:
    """Splits by the sha256 of each question id, as RR does; a candidate may be in all three sets.

    Held-out questions can have answers of the train set, so metrics are higher than with `split`. The pool of each set
    is the right candidates of its own questions.

    Args:
      records: retrieval set; its order is kept.
      validation: share of the questions held out for model selection, in [0, 1).
      test: share of the questions held out for testing, in [0, 1).
    """
    places = [hash_fraction(name) for name in records.question_ids]
    bounds = {"test": (0.0, test), "validation": (test, test + validation), "train": (test + validation, 1.0)}
    rows = {
        name: [row for row, place in enumerate(places) if low <= place < high] for name, (low, high) in bounds.items()
    }
    return Splits(**{name: records.subset(kept) for name, kept in rows.items()})


SPLITS = {"answers": split, "questions": split_questions}  # by `data.held_out_by`


def take(records: RetrievalSet, limit: int) -> RetrievalSet:
    """Returns the `limit` questions with the smallest sha256 of their texts, in that order, with their candidates.

    Returns all questions if there are fewer. When data is added, most of the selected questions stay the same.

    Raises:
      EndxError: `limit` is below 1.
    """
    if limit < 1:
        raise EndxError(f"the maximum number of questions must be at least 1, not {limit}")
    return records.subset(_by_hash(records)[:limit])


def limit_questions(records: RetrievalSet, limit: int) -> RetrievalSet:
    """Returns the questions that `take` keeps, with the whole pool; all questions with a limit of 0."""
    if not limit or limit >= len(records.questions):
        return records
    return records.select_questions(_by_hash(records)[:limit])


def first_pairs(records: RetrievalSet, count: int) -> RetrievalSet:
    """Returns the first questions that together have at least `count` right pairs, with their candidates."""
    pairs = np.cumsum([len(right) for right in records.qrels])
    return records.subset(range(min(int(np.searchsorted(pairs, count)) + 1, len(records.questions))))


def without_questions(records: RetrievalSet, texts: Set[str]) -> RetrievalSet:
    """Returns the set without the questions in `texts` and without candidates that only they need."""
    return records.subset([row for row, question in enumerate(records.questions) if question not in texts])


def _by_hash(records: RetrievalSet) -> list[int]:
    return sorted(range(len(records.questions)), key=lambda question: _hash(records.questions[question]))


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8")).digest()


def _places(records: RetrievalSet) -> list[float]:
    """Returns the position of each question in [0, 1), which is equal within a component; see `split`.

    A question without an answer is a separate component.
    """
    count = len(records.candidates)
    groups = {name: count + n for n, name in enumerate(dict.fromkeys(records.groups or ()))}
    members = [list(right) for right in records.qrels]
    for row, name in enumerate(records.groups or ()):
        members[row].append(groups[name])
    parent = list(range(count + len(groups)))

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for nodes in members:
        for node in nodes[1:]:
            parent[root(node)] = root(nodes[0])
    hashes: dict[int, list[float]] = {}
    named = groups or {records.candidates[node]: node for nodes in members for node in nodes}
    for text, node in named.items():
        hashes.setdefault(root(node), []).append(hash_fraction(text))
    places = {node: 1 - (1 - min(found)) ** len(found) for node, found in hashes.items()}
    return [
        places[root(nodes[0])] if nodes else hash_fraction(question)
        for question, nodes in zip(records.questions, members, strict=True)
    ]


def hash_fraction(text: str) -> float:
    """Returns the hash of a text as a number in [0, 1)."""
    return int.from_bytes(_hash(text)[:6], "big") / 2**48


# A word for BM25.
WORD = re.compile(r"\w\w")


def with_many_questions(records: RetrievalSet, minimums: Sequence[int]) -> dict[str, RetrievalSet]:
    """Returns the subsets of questions whose answers are shared by many questions, by name.

    For each minimum n, unless no candidate is right for n questions (n = 8 in Wang et al. 2021, Table 4, and Yu et al.
    2020, Table 3):

    - `answers>=n`: the questions with a candidate that is right for at least n questions, and the whole pool.
    - `answers>=n-alone`: the same questions, with a pool of only these candidates. Left out if no candidate contains a
      word, since BM25 could not rank them.

    Args:
      records: the set.
      minimums: numbers of questions.
    """
    questions_of, found = questions_by_candidate(records.qrels), {}
    for minimum in minimums:
        kept = sorted(candidate for candidate, questions in questions_of.items() if len(questions) >= minimum)
        if kept:
            rows = sorted({row for candidate in kept for row in questions_of[candidate]})
            whole = found[f"answers>={minimum}"] = records.select_questions(rows)
            if any(WORD.search(records.candidates[candidate]) for candidate in kept):
                found[f"answers>={minimum}-alone"] = whole.with_pool(kept)
    return found


def of_few_paragraphs(records: RetrievalSet, paragraphs: int, pairs: int) -> RetrievalSet:
    """Returns questions of the paragraphs with the most of them, one of each in turn, up to a number of right pairs.

    Args:
      records: sentences after ReQA, whose ids are `PARAGRAPH.SENTENCE`.
      paragraphs: number of paragraphs.
      pairs: number of right pairs of a question and a sentence.
    """
    questions: dict[str, list[int]] = {}
    for question, right in enumerate(records.qrels):
        questions.setdefault(records.candidate_ids[right[0]].partition(".")[0], []).append(question)
    most = sorted(questions.values(), key=len, reverse=True)[:paragraphs]
    in_turn = [row for rows in itertools.zip_longest(*most) for row in rows if row is not None]
    count = np.cumsum([len(records.qrels[row]) for row in in_turn])
    return records.subset(in_turn[: int(np.searchsorted(count, pairs)) + 1], hard_negatives=False)
