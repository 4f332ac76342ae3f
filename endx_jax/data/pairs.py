"""Training pairs: the interface of training data, and tables of texts with the pairs between them."""

import dataclasses
import mmap
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from endx_jax.data.ragged import Ragged
from endx_jax.data.token_tables import TokenTable, VectorTable


class TextReader(Protocol):
    """Function from the texts of one side to a table of tokens or vectors, such as `TextProcessor`."""

    @property
    def length(self) -> int:
        """Maximum length of a text, in tokens."""

    def __call__(self, texts: Sequence[str]) -> TokenTable | VectorTable:
        """Returns the table of N texts."""


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Question-answer pairs as tokens, or as vectors if all parameters below the towers' heads are frozen.

    All arrays may be mapped from files (`data/token_store`); batches read only the rows that they need.

    Attributes:
      questions: distinct questions.
      answers: distinct candidates.
      index: int32 [n, 2], (question, answer) rows of each pair.
      positives: int32, answers of each of the Q questions that are no negatives, ascending: right ones, and its own
        text if that is the answer of another pair.
      hard_negatives: int32, hard negatives of each question.
      groups: int32 [Q], number of each question's group; None without groups.
      question_length: maximum length of a question, in tokens.
      answer_length: maximum length of an answer, in tokens.
      sizes: number of pairs of each mixed set, in the order of `index`; a pair in several sets has a row for each.
        Empty if no sets were mixed.
      scores: float32, a teacher's scores of `positives` and `hard_negatives`, NaN where unknown; None without a
        teacher.
      guide: float32 [Q, G] and [N, G], embeddings of questions and answers by another model, by the sides' names; None
        without one.
      guide_identity: identity of that model (see `inference.identity`); empty without one.
      mapped: maps of the files behind the arrays.
    """

    questions: TokenTable | VectorTable
    answers: TokenTable | VectorTable
    index: np.ndarray
    positives: Ragged
    hard_negatives: Ragged
    groups: np.ndarray | None
    question_length: int
    answer_length: int
    sizes: tuple[int, ...] = ()
    scores: tuple[Ragged, Ragged] | None = None
    guide: Mapping[str, np.ndarray] | None = None
    guide_identity: str = ""
    mapped: tuple[mmap.mmap, ...] = ()

    def __len__(self) -> int:
        return len(self.index)

    def release(self) -> None:
        """Removes the pages of mapped files from the memory of the process; the system may keep them in its cache."""
        for file in self.mapped:
            file.madvise(mmap.MADV_DONTNEED)

    def first(self, count: int) -> "Pairs":
        """Returns the same tables with only the first `count` pairs."""
        return dataclasses.replace(self, index=self.index[:count])


class TrainingData(Protocol):
    """Data that a run trains on: a `RetrievalSet` in memory, or a `TokenStore` on disk."""

    @property
    def sha256(self) -> str:
        """Hash of all that training reads."""

    @property
    def pair_count(self) -> int:
        """Number of right pairs."""

    @property
    def question_count(self) -> int:
        """Number of distinct questions."""

    @property
    def has_hard_negatives(self) -> bool:
        """True if some question has hard negatives."""

    def question_names(self, rows: np.ndarray) -> list[str]:
        """Returns the names of questions, for logs."""

    def first(self, count: int) -> "TrainingData":
        """Returns the data without texts that the first `count` pairs do not need, if they are in memory."""

    def tokenize(self, readers: Mapping[str, TextReader]) -> Pairs:
        """Returns the pairs, whose texts are read by the readers of the sides `question` and `answer`."""
