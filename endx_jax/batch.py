"""Batches of texts and of question-answer pairs."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class Packing:
    """Shapes of a layout that concatenates texts instead of padding each to the longest: see models/layout.py.

    Attributes:
      tokens: T, maximum number of tokens of all texts together.
      buckets: (number of texts, width in tokens) of each bucket, in which operations that combine the tokens of a text,
        such as attention, are computed. The shortest texts are in the first bucket.
    """

    tokens: int
    buckets: tuple[tuple[int, int], ...]

    @property
    def row_widths(self) -> np.ndarray:
        """Width of each text's row in its bucket, int [B], in order of length."""
        counts, widths = zip(*self.buckets, strict=True)
        return np.repeat(widths, counts)

    @property
    def width(self) -> int:
        """Maximum length of a text in tokens."""
        return max(width for _, width in self.buckets)


@flax.struct.dataclass
class Tokens:
    """Padded token ids of B texts, or of [B, K] hard negatives.

    Attributes:
      ids: token ids, int32 [B, L]; the pad id where `mask` is false.
      mask: bool [B, L], true for real tokens, special tokens included; padding is at the end of each row.
      packing: layout of the texts in the encoder, for the number of texts in a chunk; None keeps them padded.
      second: position of the second text in each row of two joined texts, int32 [B]; None for rows of one text.
    """

    ids: Array
    mask: Array
    packing: Packing | None = flax.struct.field(pytree_node=False, default=None)
    second: Array | None = None

    @property
    def lengths(self) -> Array:
        """Number of real tokens of each text, int32 [B] or [B, K]."""
        return jnp.sum(self.mask, axis=-1, dtype=jnp.int32)


@flax.struct.dataclass
class Vectors:
    """Outputs of the frozen part of a tower below its head (`models.tower.Tower.base`) for B texts.

    Attributes:
      values: float32 [B, D], or [B, K, D] for hard negatives.
    """

    values: Array

    @property
    def lengths(self) -> Array:
        """Number of tokens as in `Tokens`: zeros, int32 [B] or [B, K]."""
        return jnp.zeros(self.values.shape[:-1], jnp.int32)


Texts = Tokens | Vectors  # input of a tower


@flax.struct.dataclass
class TokenVectors:
    """Embeddings of the tokens of B texts, or of [B, K] hard negatives.

    Attributes:
      values: float32 [B, L, E]; finite where `mask` is false.
      mask: bool [B, L], true for the tokens that count.
    """

    values: Array
    mask: Array


@flax.struct.dataclass
class Batch:
    """Global batch of B question-answer pairs; row i of `question` belongs to row i of `answer`.

    Ids are indices into tables without duplicates. Equal texts of the global batch have equal ids, so that false
    negatives can be masked exactly.

    Attributes:
      question: B questions.
      answer: B answers, of the type of `question`.
      question_id: rows in the question table, int32 [B].
      answer_id: rows in the answer table, int32 [B].
      positive_ids: rows of all known right answers of each question, and of the answer with its own text if there is
        one, int32 [B, P], padded with -1; of a question with more than 64, up to 64 that the batch has beside the
        answers of that question's own pairs.
      hard_negatives: [B, K] hard negatives of the questions; None if training uses none.
      hard_negative_ids: rows of the hard negatives in the answer table, int32 [B, K]; -1 if one is missing, in which
        case its tokens are ignored.
      packing: layout of the texts of all sides as one batch, for towers that are the same on both sides; None if each
        side is encoded by itself.
      extra: further arrays [B, ...] of a loss, by the names of its arguments.
    """

    question: Texts
    answer: Texts
    question_id: Array
    answer_id: Array
    positive_ids: Array
    hard_negatives: Texts | None = None
    hard_negative_ids: Array | None = None
    packing: Packing | None = flax.struct.field(pytree_node=False, default=None)
    extra: Mapping[str, Any] = flax.struct.field(default_factory=dict)

    @property
    def sides(self) -> list[Texts]:
        """Questions, answers, and hard negatives if there are any."""
        return [side for side in (self.question, self.answer, self.hard_negatives) if side is not None]
