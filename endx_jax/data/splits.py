"""Cuts a retrieval set into train, validation and test by hashes of its texts, so that the cut is the same anywhere."""

import dataclasses
import hashlib
from collections.abc import Sequence, Set

from endx_jax.data.records import RetrievalSet
from endx_jax.errors import EndxError


@dataclasses.dataclass(frozen=True)
class Splits:
    """Three sets without a question or a candidate in common."""

    train: RetrievalSet
    validation: RetrievalSet
    test: RetrievalSet


def split(records: RetrievalSet, *, validation: float, test: float) -> Splits:
    """Splits by sha256, so that no answer leaks: questions that share a right candidate stay together.

    The unit is a connected component of questions and their candidates, placed by the smallest hash among its
    candidates' texts. Where every question has one answer that is simply the hash of the answer, and new data never
    moves an old question. (The smallest hash of its *questions* would: one more question about a paragraph could move
    all of that paragraph's.) A new candidate that joins a component can move it; as it may join two components of
    different splits, no rule that keeps answers apart avoids that.

    Fractions are of components in expectation, so the number of questions in a split varies around them. Each split's
    pool is what is right for its own questions; candidates that are right for none are in no pool.

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
    return Splits(**{name: _subset(records, kept) for name, kept in rows.items()})


def take(records: RetrievalSet, limit: int) -> RetrievalSet:
    """The `limit` questions whose texts have the smallest sha256, in that order, and the candidates right for them.

    All of them where there are fewer. Data that is added displaces a question only where its hash is smaller.
    """
    if limit < 1:
        raise EndxError(f"a set can be cut to 1 or more questions, not to {limit}")
    by_hash = sorted(range(len(records.questions)), key=lambda question: _hash(records.questions[question]))
    return _subset(records, by_hash[:limit])


def without_questions(records: RetrievalSet, texts: Set[str]) -> RetrievalSet:
    """The set without the questions in `texts`, and without candidates that were right for those alone."""
    return _subset(records, [row for row, question in enumerate(records.questions) if question not in texts])


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8")).digest()


def _places(records: RetrievalSet) -> list[float]:
    """For each question a number in [0, 1), equal within a component; a question without an answer goes by itself."""
    parent = list(range(len(records.candidates)))

    def root(candidate: int) -> int:
        while parent[candidate] != candidate:
            parent[candidate] = parent[parent[candidate]]
            candidate = parent[candidate]
        return candidate

    for right in records.qrels:
        for candidate in right[1:]:
            parent[root(candidate)] = root(right[0])
    smallest: dict[int, bytes] = {}
    for candidate in {candidate for right in records.qrels for candidate in right}:
        found, component = _hash(records.candidates[candidate]), root(candidate)
        smallest[component] = min(found, smallest.get(component, found))
    hashes = [
        smallest[root(right[0])] if right else _hash(question)
        for question, right in zip(records.questions, records.qrels, strict=True)
    ]
    return [int.from_bytes(found[:6], "big") / 2**48 for found in hashes]


def _subset(records: RetrievalSet, rows: Sequence[int]) -> RetrievalSet:
    """The questions in `rows`, in that order, and the candidates right for them in the order of first use."""
    kept = list(dict.fromkeys(candidate for row in rows for candidate in records.qrels[row]))
    new = {candidate: n for n, candidate in enumerate(kept)}
    return RetrievalSet(
        questions=tuple(records.questions[row] for row in rows),
        candidates=tuple(records.candidates[candidate] for candidate in kept),
        qrels=tuple(tuple(sorted(new[candidate] for candidate in records.qrels[row])) for row in rows),
        question_ids=tuple(records.question_ids[row] for row in rows),
        candidate_ids=tuple(records.candidate_ids[candidate] for candidate in kept),
    )
