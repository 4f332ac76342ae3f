"""What the server may be asked to work out."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from endx_jax.data.documents import Document


@dataclasses.dataclass(frozen=True)
class Encode:
    """Texts to be encoded: becomes `Encoded`.

    Attributes:
      side: `question` or `answer`.
      texts: one at least.
    """

    side: str
    texts: Sequence[str]


@dataclasses.dataclass(frozen=True)
class Ask:
    """A question to be answered: becomes a list of `Answer`s.

    Attributes:
      question: a text.
      k: answers at most.
      mode: `dense`, `bm25` or `hybrid`.
    """

    question: str
    k: int
    mode: str


@dataclasses.dataclass(frozen=True, eq=False)
class Add:
    """Documents to be added, in the place of those with their ids: becomes None.

    Attributes:
      documents: n of them.
      embeddings: float32 [n, E].
    """

    documents: Sequence[Document]
    embeddings: np.ndarray


@dataclasses.dataclass(frozen=True)
class Delete:
    """A document to be deleted: becomes whether there was one.

    Attributes:
      id: its id.
    """

    id: str


Work = Encode | Ask | Add | Delete


def to_encode(work: Work) -> tuple[str, Sequence[str]]:
    """A side, and the texts of it that a work needs encoded: none, where it needs none."""
    match work:
        case Encode():
            return work.side, work.texts
        case Ask() if work.mode != "bm25":
            return "question", [work.question]
        case _:
            return "question", []
