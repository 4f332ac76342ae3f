"""A retrieval set out of rows that each name a question, passages that are right for it, and ones that are not."""

from collections.abc import Iterable
from typing import NamedTuple

from endx_jax.data.records import RetrievalSet
from endx_jax.errors import EndxError


class Named(NamedTuple):
    """A text and what its file calls it; an empty id where it has none."""

    text: str
    id: str = ""


class Gathering:
    """What has been read so far; equal texts are merged under the first one's id.

    Questions without an id are called `q0`, `q1`, ... and passages `d0`, `d1`, ..., by their places.
    """

    def __init__(self):
        self._questions: dict[str, str] = {}
        self._passages: dict[str, int] = {}
        self._passage_ids: list[str] = []
        self._right: dict[str, set[int]] = {}
        self._wrong: dict[str, set[int]] = {}
        self._texts: dict[tuple[str, str], str] = {}

    def add(self, question: Named, right: Iterable[Named], wrong: Iterable[Named], where: str) -> None:
        """Takes a row; one without a right passage is passed over, as nothing can be learned or measured on it.

        Args:
          question: that is asked.
          right: passages that answer it.
          wrong: passages that look right and are not.
          where: the row stands, for messages.

        Raises:
          EndxError: an id stands for two texts.
        """
        right = list(right)
        if not right:
            return
        name = question.id or f"q{len(self._questions)}"
        if question.text not in self._questions or question.id:
            self._check("question", name, question.text, where)
        self._questions.setdefault(question.text, name)
        self._right.setdefault(question.text, set()).update(self._row(passage, where) for passage in right)
        self._wrong.setdefault(question.text, set()).update(self._row(passage, where) for passage in wrong)

    def _row(self, passage: Named, where: str) -> int:
        row = self._passages.setdefault(passage.text, len(self._passages))
        name = passage.id or f"d{row}"
        if row == len(self._passage_ids):
            self._passage_ids.append(name)
            self._check("passage", name, passage.text, where)
        elif passage.id:
            self._check("passage", name, passage.text, where)
        return row

    def _check(self, kind: str, name: str, text: str, where: str) -> None:
        if self._texts.setdefault((kind, name), text) != text:
            raise EndxError(f"{where}: the {kind} id {name!r} has stood before with another text")

    def records(self, path: str) -> RetrievalSet:
        """The set; without hard negatives where no row has any.

        Raises:
          EndxError: there is no question in it.
        """
        if not self._questions:
            raise EndxError(f"{path}: no questions with a right passage in the file")
        wrong = [self._wrong[question] - self._right[question] for question in self._questions]
        return RetrievalSet(
            questions=tuple(self._questions),
            candidates=tuple(self._passages),
            qrels=tuple(tuple(sorted(self._right[question])) for question in self._questions),
            question_ids=tuple(self._questions.values()),
            candidate_ids=tuple(self._passage_ids),
            hard_negatives=tuple(tuple(sorted(rows)) for rows in wrong) if any(wrong) else None,
        )
