"""Splits and subsets of retrieval sets, chosen by hashes so that they are the same on every machine."""

import collections
import dataclasses
import hashlib
import re
from collections.abc import Iterable, Sequence, Set

import numpy as np

from endx_jax.data.sets.records import RetrievalSet, questions_by_candidate
from endx_jax.errors import EndxError

# With fewer questions than this, none is held out.
FEW = 10


@dataclasses.dataclass(frozen=True)
class Splits:
    """Train, validation and test sets; see `split` for their overlap. The train set is empty if it is on disk."""

    train: RetrievalSet
    validation: RetrievalSet
    test: RetrievalSet


def split(records: RetrievalSet, *, validation: float, test: float) -> Splits:
    """Splits by sha256; questions that share a group or a right candidate are in the same split, to prevent leakage.

    The unit is a connected component of questions, their groups and their right candidates. A question and a right
    candidate of the same text, as of pairs in both directions, are in one component too. With m the smallest hash
    among its n groups, or among its n candidates' texts if there are no groups, its position is 1 - (1 - m)^n, which is
    uniform in [0, 1) for every n. If every question has one answer, the position is the hash of the answer, and new
    data does not move questions to another split. If questions have several answers, new data can join two components
    of different splits and so move one of them.

    Fractions hold for components in expectation; the number of questions varies around them. But each split with a
    fraction above 0 has at least one component, and of fewer than `FEW` questions none is held out. The pool of each
    split is the right candidates and hard negatives of its own questions; other candidates are in no pool.

    Args:
      records: retrieval set; its order is kept.
      validation: share held out for model selection, in [0, 1).
      test: share held out for testing, in [0, 1). Changing `validation` does not change the test split, unless too few
        components are left for training.

    Raises:
      EndxError: there are fewer components than splits.
    """
    # Few answers of many questions are probably labels.
    correct = "correct data.answer_column or " * (len(records.candidates) < 3 and not records.groups)
    alike = f"those with a common {'article or ' if records.groups else ''}answer"
    advice = f"{correct}set data.held_out_by=questions"
    return _parted(records, _places(records), validation, test, alike, advice)


def split_questions(records: RetrievalSet, *, validation: float, test: float) -> Splits:
    """Splits by the sha256 of each question id, as RR does; a candidate may be in all three sets.

    Held-out questions can have answers of the train set, so metrics are higher than with `split`. The pool of each set
    is the right candidates and hard negatives of its own questions. Few questions are divided as by `split`, and
    questions that are right candidates of each other stay together.

    Args:
      records: retrieval set; its order is kept.
      validation: share of the questions held out for model selection, in [0, 1).
      test: share of the questions held out for testing, in [0, 1). With a sum of 1, none is for training.

    Raises:
      EndxError: there are fewer questions than splits.
    """
    asking = questions_by_candidate(records.qrels)
    own_texts = records.own_texts
    members = [[row, *asking.get(own_texts.get(row, -1), ())] for row in range(len(records.questions))]
    names = list(zip(records.question_ids, range(len(members)), strict=True))
    places = [place for place in _positions(members, names, len(members)) if place is not None]
    return _parted(records, places, validation, test, "those that answer each other", "use other shares or more data")


def _parted(
    records: RetrievalSet, places: Sequence[float], validation: float, test: float, alike: str, advice: str
) -> Splits:
    """Returns the splits of questions by their positions in [0, 1); equal positions stay together; see `split`."""
    units, trains = np.unique(places), validation + test < 1
    wanted = (validation > 0) + (test > 0) + trains
    tested = held_out = 0  # units in test, and in test or validation
    if len(places) >= FEW:
        if len(units) < wanted:
            name, share = ("validation", validation) if validation else ("test", test)
            largest = max(collections.Counter(places).values())
            raise EndxError(
                f"none of the {len(places)} questions fell into {name}, a share of {share:.3g}: {alike} stay "
                f"together, here up to {largest}; {advice}"
            )
        tested, held_out = np.searchsorted(units, (test, test + validation)).tolist()
        tested = max(tested, int(test > 0))
        held_out = min(max(held_out, tested + (validation > 0)), len(units) - trains)
        tested = min(tested, held_out - (validation > 0))
    unit = np.searchsorted(units, places)
    parts = {"train": unit >= held_out, "validation": (unit >= tested) & (unit < held_out), "test": unit < tested}
    return Splits(**{name: records.subset(np.flatnonzero(kept).tolist()) for name, kept in parts.items()})


SPLITS = {"answers": split, "questions": split_questions}  # by `data.held_out_by`


def take(records: RetrievalSet, limit: int) -> RetrievalSet:
    """Returns the `limit` questions with the smallest sha256 of their texts, in that order, with their candidates.

    Returns all questions if there are fewer. When data is added, most of the selected questions stay the same.
    """
    return records.subset(_by_hash(records)[:limit])


def limit_questions(records: RetrievalSet, limit: int) -> RetrievalSet:
    """Returns the questions that `take` keeps, with the whole pool; all questions with a limit of 0."""
    if not limit or limit >= len(records.questions):
        return records
    return records.select_questions(_by_hash(records)[:limit])


def without_questions(records: RetrievalSet, texts: Set[str]) -> RetrievalSet:
    """Returns the set without questions in `texts` or with a right candidate in `texts`.

    Candidates that are right only for these questions are left out too.
    """
    rows = zip(records.questions, records.qrels, strict=True)
    named = {candidate for candidate, text in enumerate(records.candidates) if text in texts}
    return records.subset([n for n, (text, right) in enumerate(rows) if text not in texts and named.isdisjoint(right)])


def _by_hash(records: RetrievalSet) -> list[int]:
    return sorted(range(len(records.questions)), key=lambda question: _hash(records.questions[question]))


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8")).digest()


def _places(records: RetrievalSet) -> list[float]:
    """Returns the position of each question in [0, 1): see `split`. One without an answer is a component of its own."""
    count = len(records.candidates)
    groups = {name: count + n for n, name in enumerate(dict.fromkeys(records.groups or ()))}
    members = [list(right) for right in records.qrels]
    for row, name in enumerate(records.groups or ()):
        members[row].append(groups[name])
    right = {node for nodes in records.qrels for node in nodes}
    for row, candidate in records.own_texts.items():
        members[row] += [candidate] * (candidate in right)
    named = groups or {records.candidates[node]: node for nodes in members for node in nodes}
    places = _positions(members, named.items(), count + len(groups))
    return [
        hash_fraction(question) if place is None else place
        for question, place in zip(records.questions, places, strict=True)
    ]


def _positions(members: Sequence[Sequence[int]], named: Iterable[tuple[str, int]], count: int) -> list[float | None]:
    """Returns the position of the component of each list of nodes below `count`; None for empty lists; see `split`."""
    from scipy.sparse import coo_array, csgraph

    edges = np.array([(nodes[0], node) for nodes in members for node in nodes[1:]], np.int64).reshape(-1, 2)
    graph = coo_array((np.ones(len(edges), bool), tuple(edges.T)), (max(count, 1),) * 2)
    component = csgraph.connected_components(graph, directed=False)[1].tolist()
    hashes: dict[int, list[float]] = {}
    for text, node in named:
        hashes.setdefault(component[node], []).append(hash_fraction(text))
    places = {node: 1 - (1 - min(fractions)) ** len(fractions) for node, fractions in hashes.items()}
    return [places[component[nodes[0]]] if nodes else None for nodes in members]


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
    """
    questions_of, subsets = questions_by_candidate(records.qrels), {}
    for minimum in minimums:
        shared = sorted(candidate for candidate, questions in questions_of.items() if len(questions) >= minimum)
        if shared:
            rows = sorted({row for candidate in shared for row in questions_of[candidate]})
            whole = subsets[f"answers>={minimum}"] = records.select_questions(rows)
            if any(WORD.search(records.candidates[candidate]) for candidate in shared):
                subsets[f"answers>={minimum}-alone"] = whole.with_pool(shared)
    return subsets
