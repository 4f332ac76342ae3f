"""Mixtures of training sets, with shared texts merged."""

import dataclasses
from collections.abc import Sequence

from endx_jax.data.records import RetrievalSet, RetrievalSetBuilder


def mix(sets: Sequence[RetrievalSet]) -> RetrievalSet:
    """Merges sets into one whose `sources` name the sets of each question.

    Equal candidates are merged, and so are equal questions, with all their right candidates, so that no right answer
    of any set is a negative in a batch, and no right answer is a hard negative. Of several teachers' scores of a pair
    the first is kept, and of several grades the highest. Ids of the first set are kept; those of
    the others are prefixed with the set's number and a colon. If only some sets have groups, each question of the
    others is a group of its own.
    """
    merged = RetrievalSetBuilder()
    sources: dict[int, dict[int, None]] = {}
    grouped = any(records.groups is not None for records in sets)
    for number, records in enumerate(sets):
        prefix = f"{number}:" if number else ""
        listed = zip(records.candidates, records.candidate_ids, strict=True)
        places = [merged.candidate(text, prefix + name) for text, name in listed]
        for row, text in enumerate(records.questions):
            name = prefix + records.question_ids[row]
            group = (records.groups and records.groups[row]) or f"question {name}"
            question = merged.question(text, name, group if grouped else None)
            for candidate in records.qrels[row]:
                merged.judge(question, places[candidate], records.grades[row][candidate] if records.grades else 1)
            if records.hard_negatives:
                merged.wrong[question].update(places[candidate] for candidate in records.hard_negatives[row])
            if records.excluded:
                merged.excluded[question].update(places[candidate] for candidate in records.excluded[row])
            for candidate, score in (records.scores[row] if records.scores else {}).items():
                merged.scores[question].setdefault(places[candidate], score)
            sources.setdefault(question, {})[number] = None
    mixed = merged.build(hard_negatives=any(records.hard_negatives is not None for records in sets))
    return dataclasses.replace(mixed, sources=tuple(map(tuple, sources.values())))
