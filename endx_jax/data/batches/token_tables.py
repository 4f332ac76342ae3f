"""Tables of tokens or vectors of texts, and training pairs between them."""

import dataclasses
import hashlib
import mmap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from endx_jax.data.batches.ragged import Ragged, Rows, offsets_of, padded
from endx_jax.numerics import round_up

if TYPE_CHECKING:  # importing it imports JAX, which reading data does not need
    from endx_jax.batch import Tokens, Vectors


@dataclasses.dataclass(frozen=True)
class TokenTable(Rows):
    """Token ids of N texts, concatenated.

    Attributes:
      ids: integers [T], all texts one after another; may be mapped from a file.
      offsets: int64 [N + 1]; text i is `ids[offsets[i]:offsets[i + 1]]`. May be mapped from a file.
      pad_id: padding id.
      truncated: bool [N], true for texts that were truncated; None if none was.
      second: int32 [N], start of the second text in each pair of joined texts; None if texts are not joined.
    """

    ids: np.ndarray
    offsets: np.ndarray
    pad_id: int
    truncated: np.ndarray | None = None
    second: np.ndarray | None = None

    @classmethod
    def from_lengths(cls, ids: np.ndarray, lengths: np.ndarray, pad_id: int, truncated=None) -> "TokenTable":
        """Returns the table of ids [T] whose N texts have the given lengths [N]."""
        return cls(ids, offsets_of(lengths), pad_id, truncated)

    @property
    def cut(self) -> int:
        """Number of texts that were truncated."""
        return 0 if self.truncated is None else int(self.truncated.sum())

    def pad(self, rows: np.ndarray, length: int) -> "Tokens":
        """Returns the texts in `rows` [...], padded to `length`, as NumPy `Tokens` [..., length]; none is truncated."""
        from endx_jax.batch import Tokens

        starts, lengths = self.offsets[rows], self.length_of(rows)
        ids, mask = padded(self.ids, starts, lengths, length, self.pad_id, np.int32)
        second = None if self.second is None else self.second[rows]
        # NumPy arrays, since whole batches are moved to devices later.
        return Tokens(ids=ids, mask=mask, second=second)  # type: ignore[arg-type]


def padded_length(longest: int, limit: int, multiple: int) -> int:
    """Returns the width to pad to: `longest`, rounded up so that few shapes are compiled, and at most `limit`."""
    return min(round_up(max(int(longest), 1), multiple), limit)


@dataclasses.dataclass(frozen=True)
class VectorTable:
    """Vectors of N texts instead of tokens, for training with frozen encoders.

    Attributes:
      values: float32 [N, D]; may be mapped from a file.
    """

    values: np.ndarray

    def __len__(self) -> int:
        return len(self.values)

    def length_of(self, rows: np.ndarray) -> np.ndarray:
        """Returns the numbers of tokens of `rows` [...]: zeros, since vectors have none."""
        return np.zeros(rows.shape, np.int64)

    def pad(self, rows: np.ndarray, length: int) -> "Vectors":
        """Returns the vectors in `rows` [...] as NumPy `Vectors` [..., D]; `length` is ignored."""
        from endx_jax.batch import Vectors

        del length
        return Vectors(self.values[rows])


class TextReader(Protocol):
    """Function from the texts of one side to a table of tokens or vectors, such as `TextProcessor`."""

    @property
    def length(self) -> int:
        """Maximum length of a text, in tokens."""

    def __call__(self, texts: Sequence[str]) -> TokenTable | VectorTable:
        """Returns the table of N texts."""


class Counts(NamedTuple):
    """Numbers of questions, right pairs and hard negatives of training data, and the largest score of a teacher.

    Equal questions count once. The count of a `TokenStore` includes questions with only hard negatives. `largest_score`
    is the largest absolute value of a teacher's scores, 0 without a teacher.
    """

    questions: int
    pairs: int
    hard_negatives: int
    largest_score: float = 0.0


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Question-answer pairs as tokens, or as vectors if all parameters below the towers' heads are frozen.

    All arrays may be mapped from files (`data.batches.token_store`); batches read only the rows that they need.

    Attributes:
      questions: distinct questions.
      answers: distinct candidates.
      index: int32 [n, 2], (question, answer) rows of each pair.
      positives: int32, for each of the Q questions the answers that are no negatives, ascending: the right ones, those
        that are excluded for it, and the question's own text if that is the answer of another pair.
      hard_negatives: int32, hard negatives of each question.
      groups: int32 [Q], number of each question's group; None without groups.
      question_length: maximum length of a question, in tokens.
      answer_length: maximum length of an answer, in tokens.
      sizes: number of pairs of each mixed set, in the order of `index`; a pair in several sets has a row for each.
        Empty if no sets were mixed.
      scores: float32, a teacher's scores of `positives` and `hard_negatives`, NaN where unknown; None without a
        teacher.
      guide: embeddings of questions, float32 [Q, G], and answers, [N, G], by another model, under the names of the
        sides, which are indexed by arrays of rows; None without one.
      teacher_identity: identity of that model (see `inference.identity`) if its embeddings are learned; else empty.
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
    guide: Mapping[str, Any] | None = None
    teacher_identity: str = ""
    mapped: tuple[mmap.mmap, ...] = ()

    def __len__(self) -> int:
        return len(self.index)

    @property
    def counts(self) -> Counts:
        """Numbers of questions, pairs and hard negatives, and the largest score."""
        ends = (end(part.values, initial=0) for part in self.scores or () for end in (np.nanmin, np.nanmax))
        largest = max((abs(float(end)) for end in ends), default=0.0)  # without a copy of the scores
        return Counts(len(self.questions), len(self), len(self.hard_negatives.values), largest)

    def release(self) -> None:
        """Removes the pages of mapped files from the memory of the process; the system may keep them in its cache."""
        for file in self.mapped:
            file.madvise(mmap.MADV_DONTNEED)

    def first(self, count: int) -> "Pairs":
        """Returns the same tables with only the first `count` pairs."""
        return dataclasses.replace(self, index=self.index[:count])


# Part of every key, so that entries of another layout are not found.
LAYOUT = "endx_jax tokens 1"
CHUNK = 10_000


def content_key(texts: Sequence[str], *about: object) -> str:
    """Returns the sha256, in hexadecimal, of texts and of `about`, all else that determines a cache entry.

    Texts are hashed in chunks as (count, lengths, bytes), so that the boundaries between texts matter.
    """
    digest = hashlib.sha256(repr((LAYOUT, *about)).encode())
    for start in range(0, len(texts), CHUNK):
        encoded = [text.encode("utf-8", "surrogatepass") for text in texts[start : start + CHUNK]]
        digest.update(np.array([len(encoded), *map(len, encoded)], "<i8").tobytes())
        digest.update(b"".join(encoded))
    return digest.hexdigest()
