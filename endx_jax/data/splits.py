"""Cuts a retrieval set into train, validation and test by hashes, so that the cut is the same anywhere."""

import dataclasses
import hashlib
from collections.abc import Set

import numpy as np

from endx_jax.data.records import RetrievalSet
from endx_jax.errors import EndxError


@dataclasses.dataclass(frozen=True)
class Splits:
    """Three sets without a question, a group or a right candidate in common."""

    train: RetrievalSet
    validation: RetrievalSet
    test: RetrievalSet


def split(records: RetrievalSet, *, validation: float, test: float) -> Splits:
    """Splits by sha256; questions of one group, or with a right candidate in common, stay together, so nothing leaks.

    The unit is a connected component of questions, their groups and their right candidates. It is placed by the
    smallest hash m among its n groups, or among its n candidates' texts where there are no groups, at 1 - (1 -
    m)^n, which is uniform for every n. Where every question has one answer that is simply the hash of the answer,
    and new data never moves an old question. (Hashes of *questions* would: one more question about a paragraph
    could move all of that paragraph's.) New data that joins a component can move it; as it may join two components
    of different splits, no rule that keeps answers apart avoids that.

    Fractions are of components in expectation, so the number of questions in a split varies around them. Each split's
    pool is what is right for its own questions, or a hard negative of theirs; other candidates are in no pool.

    Args:
      records: the set to split; its order is kept.
      validation: share held out for choosing, in [0, 1).
      test: share held out for reporting, in [0, 1); moving `validation` does not move the test split.

    Raises:
      EndxError: the fractions are not shares that leave some for training, or a split that should not be empty is.
    """
    if not (0 <= validation < 1 and 0 <= test < 1 and validation + test < 1):
        raise EndxError(
            f"the validation and test fractions must be in [0, 1) with a sum below 1, not {validation} and {test}"
        )
    rows: dict[str, list[int]] = {"train": [], "validation": [], "test": []}
    for question, place in enumerate(_places(records)):
        name = "test" if place < test else "validation" if place < test + validation else "train"
        rows[name].append(question)
    for name, fraction in (("train", 1 - validation - test), ("validation", validation), ("test", test)):
        if fraction > 0 and not rows[name]:
            raise EndxError(
                f"none of the {len(records.questions)} questions fell into the {name} split, a share of "
                f"{fraction:.3g}; give more data or another share"
            )
    return Splits(**{name: records.subset(kept) for name, kept in rows.items()})


def split_questions(records: RetrievalSet, *, validation: float, test: float) -> Splits:
    """Splits by each question's own sha256, wherever its candidates go: a candidate may be in all three sets.

    What is learned of a candidate through one question then helps another that is held out, so that figures are higher
    than by `split`. RR splits so. Each set's pool is what is right for its own questions.

    Args:
      records: the set to split; its order is kept.
      validation: share of the questions held out for choosing, in [0, 1).
      test: share held out for reporting, in [0, 1).
    """
    places = [_hash_fraction(name) for name in records.question_ids]
    bounds = {"test": (0.0, test), "validation": (test, test + validation), "train": (test + validation, 1.0)}
    rows = {
        name: [row for row, place in enumerate(places) if low <= place < high] for name, (low, high) in bounds.items()
    }
    return Splits(**{name: records.subset(kept) for name, kept in rows.items()})


def take(records: RetrievalSet, limit: int) -> RetrievalSet:
    """The `limit` questions whose texts have the smallest sha256, in that order, with their candidates.

    All of them where there are fewer. Data that is added displaces a question only where its hash is smaller.
    """
    if limit < 1:
        raise EndxError(f"a set can be cut to 1 or more questions, not to {limit}")
    return records.subset(_by_hash(records)[:limit])


def ask_fewer(records: RetrievalSet, limit: int) -> RetrievalSet:
    """The questions that `take` keeps, asked of the whole pool; all of them with a limit of 0."""
    if not limit or limit >= len(records.questions):
        return records
    return records.asking(_by_hash(records)[:limit])


def first_pairs(records: RetrievalSet, count: int) -> RetrievalSet:
    """As many of the first questions as have `count` right pairs, with their candidates: the rest need not be read."""
    pairs = np.cumsum([len(right) for right in records.qrels])
    return records.subset(range(min(int(np.searchsorted(pairs, count)) + 1, len(records.questions))))


def without_questions(records: RetrievalSet, texts: Set[str]) -> RetrievalSet:
    """The set without the questions in `texts`, and without candidates that were only theirs."""
    return records.subset([row for row, question in enumerate(records.questions) if question not in texts])


def _by_hash(records: RetrievalSet) -> list[int]:
    return sorted(range(len(records.questions)), key=lambda question: _hash(records.questions[question]))


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8")).digest()


def _places(records: RetrievalSet) -> list[float]:
    """For each question a number in [0, 1), equal within a component; a question without an answer goes by itself."""
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
        hashes.setdefault(root(node), []).append(_hash_fraction(text))
    places = {node: 1 - (1 - min(found)) ** len(found) for node, found in hashes.items()}
    return [
        places[root(nodes[0])] if nodes else _hash_fraction(question)
        for question, nodes in zip(records.questions, members, strict=True)
    ]


def _hash_fraction(text: str) -> float:
    """The hash as a number in [0, 1)."""
    return int.from_bytes(_hash(text)[:6], "big") / 2**48
