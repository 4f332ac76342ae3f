"""What the formats read row by row: questions with their passages or right documents, and the ids of texts."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from endx_jax.errors import EndxError

# Text of a passage, alone or as (text, id in the file).
Passage = str | tuple[str, str]


class Example(NamedTuple):
    """Question with its right passages and hard negatives, as of a row of a file.

    Attributes:
      question: text of the question.
      right: right passages.
      wrong: hard negatives.
      scores: a teacher's scores of the right and then of the wrong passages, NaN where unknown; None if there are none.
      id: id of the question; empty if it has none.
      group: subject of the question, such as the title of an article; None if unknown.
      excluded: texts of candidates that are neither ranked for the question nor negatives of it, unless they are right.
    """

    question: str
    right: Sequence[Passage]
    wrong: Sequence[Passage] = ()
    scores: Sequence[float] | None = None
    id: str = ""
    group: str | None = None
    excluded: Sequence[str] = ()


def texts_of(passages: Iterable[Passage]) -> list[str]:
    """Returns the texts of passages without their ids."""
    return [passage if isinstance(passage, str) else passage[0] for passage in passages]


class UniqueIds:
    """Ids of texts; each belongs to one text."""

    def __init__(self, kind: str = ""):
        """Starts without ids; `kind` names the texts in messages."""
        self._name, self._texts = f"{kind} id".strip(), dict[str, str]()

    def add(self, named: Iterable[tuple[str, str]], where: str) -> None:
        """Adds all of the (text, id) pairs, or none of them; empty ids are ignored.

        Raises:
          EndxError: an id belongs to two texts; `where` is its location for the message.
        """
        new: dict[str, str] = {}
        for text, name in named:
            before = self._texts.get(name, new.setdefault(name, text))
            if name and text != before:
                texts = f"{before[:80]!r} and {text[:80]!r}"
                raise EndxError(f"{where}: the {self._name} {name[:100]!r} belongs to two texts, {texts}")
        self._texts |= new


@dataclasses.dataclass(frozen=True)
class Judgements:
    """Questions with the ids of their right documents.

    Attributes:
      ids: Q external ids.
      texts: Q questions.
      right: distinct ids of each question's right documents, at least one, with their grades.
      excluded: ids of the documents that are not ranked for each question, if they exist.
    """

    ids: tuple[str, ...]
    texts: tuple[str, ...]
    right: tuple[Mapping[str, int], ...]
    excluded: tuple[tuple[str, ...], ...]
