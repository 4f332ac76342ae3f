"""What every reader returns: de-duplicated questions and candidates, and which candidates answer which question."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from endx_jax.data.documents import Document
from endx_jax.errors import EndxError


@dataclasses.dataclass(frozen=True)
class RetrievalSet:
    """Questions, the pool of candidates, and the relevance judgements between them.

    Attributes:
      questions: Q question texts.
      candidates: N candidate texts, the pool that is searched.
      qrels: for each question the sorted indices of its right candidates.
      question_ids: Q external ids, as they stand in runs and judgement files.
      candidate_ids: N external ids.
      groups: for each question what it was asked about, such as the title of an article; None where nothing says so.
      hard_negatives: for each question the sorted indices of candidates that look right and are not; None where none
        are known.
      sources: for each question the numbers of the sets that it comes from, where several were mixed: see
        `endx_jax.data.mixture`; else None.
    """

    questions: tuple[str, ...]
    candidates: tuple[str, ...]
    qrels: tuple[tuple[int, ...], ...]
    question_ids: tuple[str, ...]
    candidate_ids: tuple[str, ...]
    groups: tuple[str, ...] | None = None
    hard_negatives: tuple[tuple[int, ...], ...] | None = None
    sources: tuple[tuple[int, ...], ...] | None = None

    def __post_init__(self):
        count = len(self.questions)
        for name in ("qrels", "question_ids", "groups", "hard_negatives", "sources"):
            column = getattr(self, name)
            if column is not None and len(column) != count:
                raise EndxError(f"a retrieval set needs one entry a question: {count} questions, {len(column)} {name}")
        if len(self.candidate_ids) != len(self.candidates):
            raise EndxError(
                f"a retrieval set needs one id a candidate: {len(self.candidates)} candidates, "
                f"{len(self.candidate_ids)} ids"
            )

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Every (question, candidate) index pair that the judgements call right, in question order."""
        return [(q, c) for q, right in enumerate(self.qrels) for c in right]

    @property
    def documents(self) -> list[Document]:
        """The pool, each candidate with its id."""
        return [Document(name, text) for name, text in zip(self.candidate_ids, self.candidates, strict=True)]

    def asking(self, rows: Sequence[int]) -> "RetrievalSet":
        """The questions in `rows`, in that order, asked of the whole pool."""
        names = ("questions", "qrels", "question_ids", "groups", "hard_negatives", "sources")
        columns = {name: getattr(self, name) for name in names}
        kept = {name: column and tuple(column[row] for row in rows) for name, column in columns.items()}
        return dataclasses.replace(self, **kept)

    def subset(self, rows: Sequence[int], *, hard_negatives: bool = True) -> "RetrievalSet":
        """The questions in `rows`, in that order.

        Its pool is the candidates that are right for them, or hard negatives, in the order of first use.

        Args:
          rows: of the questions to keep.
          hard_negatives: whether to keep those.
        """
        hard = self.hard_negatives if hard_negatives else None
        columns = [self.qrels] if hard is None else [self.qrels, hard]
        kept = list(dict.fromkeys(candidate for row in rows for column in columns for candidate in column[row]))
        new = {candidate: n for n, candidate in enumerate(kept)}

        def renumbered(column):
            return tuple(tuple(sorted(new[candidate] for candidate in column[row])) for row in rows)

        return RetrievalSet(
            questions=tuple(self.questions[row] for row in rows),
            candidates=tuple(self.candidates[candidate] for candidate in kept),
            qrels=renumbered(self.qrels),
            question_ids=tuple(self.question_ids[row] for row in rows),
            candidate_ids=tuple(self.candidate_ids[candidate] for candidate in kept),
            groups=None if self.groups is None else tuple(self.groups[row] for row in rows),
            hard_negatives=None if hard is None else renumbered(hard),
            sources=None if self.sources is None else tuple(self.sources[row] for row in rows),
        )

    def reversed(self) -> "RetrievalSet":
        """The other direction: each candidate that is right for some question asks for these, among all questions."""
        asked = askers(self.qrels)
        asking = sorted(asked)
        return RetrievalSet(
            questions=tuple(self.candidates[candidate] for candidate in asking),
            candidates=self.questions,
            qrels=tuple(tuple(asked[candidate]) for candidate in asking),
            question_ids=tuple(self.candidate_ids[candidate] for candidate in asking),
            candidate_ids=self.question_ids,
        )

    @classmethod
    def from_pairs(cls, pairs) -> "RetrievalSet":
        """Builds the set from (question text, answer text) pairs, merging equal texts; ids are `q0...`, `d0...`."""
        questions: dict[str, set[int]] = {}
        candidates: dict[str, int] = {}
        for question, answer in pairs:
            right = questions.setdefault(question, set())
            right.add(candidates.setdefault(answer, len(candidates)))
        return cls(
            questions=tuple(questions),
            candidates=tuple(candidates),
            qrels=tuple(tuple(sorted(right)) for right in questions.values()),
            question_ids=tuple(f"q{i}" for i in range(len(questions))),
            candidate_ids=tuple(f"d{i}" for i in range(len(candidates))),
        )


def askers(qrels: Sequence[Sequence[int]]) -> dict[int, list[int]]:
    """For each candidate that is right for some question those questions, in order."""
    found: dict[int, list[int]] = {}
    for question, right in enumerate(qrels):
        for candidate in right:
            found.setdefault(candidate, []).append(question)
    return found


def one_to_one(qrels: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """(question, candidate) pairs with no question and no candidate twice: the first question of each first answer."""
    first: dict[int, int] = {}
    for question, right in enumerate(qrels):
        first.setdefault(right[0], question)
    return [(question, candidate) for candidate, question in first.items()]


def pad_ids(rows: Sequence[Sequence[int]]) -> np.ndarray:
    """Rows of ids, such as judgements, as int32 [len(rows), the longest, at least 1], padded with -1."""
    padded = np.full((len(rows), max(map(len, rows), default=0) or 1), -1, np.int32)
    for n, row in enumerate(rows):
        padded[n, : len(row)] = row
    return padded
