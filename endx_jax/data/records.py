"""What every reader returns: de-duplicated questions and candidates, and which candidates answer which question."""

import dataclasses

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
    """

    questions: tuple[str, ...]
    candidates: tuple[str, ...]
    qrels: tuple[tuple[int, ...], ...]
    question_ids: tuple[str, ...]
    candidate_ids: tuple[str, ...]

    def __post_init__(self):
        if len(self.qrels) != len(self.questions) or len(self.question_ids) != len(self.questions):
            raise EndxError(
                f"a retrieval set needs one qrels row and one id a question: {len(self.questions)} questions, "
                f"{len(self.qrels)} qrels rows, {len(self.question_ids)} ids"
            )
        if len(self.candidate_ids) != len(self.candidates):
            raise EndxError(
                f"a retrieval set needs one id a candidate: {len(self.candidates)} candidates, "
                f"{len(self.candidate_ids)} ids"
            )

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Every (question, candidate) index pair that the judgements call right, in question order."""
        return [(q, c) for q, right in enumerate(self.qrels) for c in right]

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
