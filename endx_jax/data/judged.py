"""Questions with the ids of what is right for them, by which a whole index is judged."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping

from endx_jax.data.readers import beir, msmarco
from endx_jax.data.readers.layout import BEIR, MSMARCO, layout
from endx_jax.data.records import RetrievalSet


@dataclasses.dataclass(frozen=True)
class Judged:
    """Questions, and for each the ids of the documents that are right.

    Attributes:
      ids: Q external ids.
      texts: Q questions.
      right: for each question at least one id, all distinct.
    """

    ids: tuple[str, ...]
    texts: tuple[str, ...]
    right: tuple[tuple[str, ...], ...]

    @classmethod
    def of_records(cls, records: RetrievalSet) -> "Judged":
        """Those of a set whose candidates are known to an index by their ids."""
        right = tuple(tuple(records.candidate_ids[row] for row in rows) for rows in records.qrels)
        return cls(records.question_ids, records.questions, right)


# Whose judgements are read without their corpus.
JUDGED: dict[str, Callable[[str, str | None], tuple[Mapping[str, str], Mapping[str, Iterable[str]]]]] = {
    BEIR: beir.judgements,
    MSMARCO: msmarco.judgements,
}


def read_judged(folder: str, split: str | None) -> Judged:
    """The judged questions of a BEIR or MS MARCO folder, whose corpus is not read.

    Equal questions stay apart here, as their ids do, and so do equal documents in the index: as in other tools that
    rank ids.

    Raises:
      EndxError: there is no such split, a line is broken, or a judged query is missing.
    """
    queries, right = JUDGED[layout(folder)](folder, split)
    return Judged(tuple(right), tuple(queries[name] for name in right), tuple(map(tuple, right.values())))
