"""Mixtures of training sets, with shared texts merged."""

from collections.abc import Sequence

from endx_jax.data.records import RetrievalSet


def mix(sets: Sequence[RetrievalSet]) -> RetrievalSet:
    """Merges sets into one whose `sources` name the sets of each question.

    Equal candidates are merged, and so are equal questions, with all their right candidates, so that no right answer
    of any set is a negative in a batch, and no right answer is a hard negative. Of several teachers' scores of a pair
    the first is kept, and of several grades the highest. Ids of the first set are kept; those of
    the others are prefixed with the set's number and a colon. If only some sets have groups, each question of the
    others is a group of its own.
    """
    merged = _Mixture()
    for number, records in enumerate(sets):
        merged.add(records, number)
    hard = any(records.hard_negatives is not None for records in sets)
    groups = any(records.groups is not None for records in sets)
    wrong = (merged.hard[row] - merged.right[row] for row in range(len(merged.questions)))
    return RetrievalSet(
        questions=tuple(merged.questions),
        candidates=tuple(merged.candidates),
        qrels=tuple(tuple(sorted(right)) for right in merged.right),
        question_ids=tuple(merged.question_ids),
        candidate_ids=tuple(merged.candidate_ids),
        groups=tuple(merged.groups) if groups else None,
        hard_negatives=tuple(tuple(sorted(found)) for found in wrong) if hard else None,
        sources=tuple(tuple(found) for found in merged.sources),
        scores=tuple(merged.scores) if any(merged.scores) else None,
        grades=tuple(merged.grades) if any(records.grades is not None for records in sets) else None,
        excluded=tuple(tuple(sorted(found)) for found in merged.excluded) if any(merged.excluded) else None,
    )


class _Mixture:
    """Accumulates merged sets: rows by text, and one list per column."""

    def __init__(self):
        self.questions: dict[str, int] = {}
        self.candidates: dict[str, int] = {}
        self.question_ids: list[str] = []
        self.candidate_ids: list[str] = []
        self.right: list[set[int]] = []
        self.hard: list[set[int]] = []
        self.groups: list[str] = []
        self.sources: list[list[int]] = []
        self.scores: list[dict[int, float]] = []
        self.grades: list[dict[int, int]] = []
        self.excluded: list[set[int]] = []

    def add(self, records: RetrievalSet, number: int) -> None:
        prefix = f"{number}:" if number else ""
        places = []
        for name, text in zip(records.candidate_ids, records.candidates, strict=True):
            if text not in self.candidates:
                self.candidate_ids.append(prefix + name)
            places.append(self.candidates.setdefault(text, len(self.candidates)))
        for row, text in enumerate(records.questions):
            place = self.questions.setdefault(text, len(self.questions))
            if place == len(self.right):
                self._begin(prefix + records.question_ids[row], records.groups[row] if records.groups else None)
            self.right[place].update(places[candidate] for candidate in records.qrels[row])
            for candidate in records.qrels[row]:
                grade = records.grades[row][candidate] if records.grades else 1
                self.grades[place][places[candidate]] = max(grade, self.grades[place].get(places[candidate], 1))
            if records.excluded:
                self.excluded[place].update(places[candidate] for candidate in records.excluded[row])
            if records.hard_negatives:
                self.hard[place].update(places[candidate] for candidate in records.hard_negatives[row])
            for candidate, score in (records.scores[row] if records.scores else {}).items():
                self.scores[place].setdefault(places[candidate], score)
            if number not in self.sources[place]:
                self.sources[place].append(number)

    def _begin(self, name: str, group: str | None) -> None:
        self.question_ids.append(name)
        self.groups.append(group or f"question {name}")
        self.right.append(set())
        self.hard.append(set())
        self.sources.append([])
        self.scores.append({})
        self.grades.append({})
        self.excluded.append(set())
