"""The batch type that models encode and objectives receive."""

import dataclasses
import math

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class Packing:
    """Array sizes for encoding texts end to end, without padding each to the longest: see models/layout.py.

    Attributes:
      tokens: T, the maximum number of tokens of all texts together.
      buckets: (texts, width in tokens) of padded rows for operations within a text, such as attention; the shortest
        texts go into the first bucket. The numbers of texts add up to B.
    """

    tokens: int
    buckets: tuple[tuple[int, int], ...]

    @property
    def row_widths(self) -> np.ndarray:
        """Returns the width of each text's row, int [B], in order of length."""
        counts, widths = zip(*self.buckets, strict=True)
        return np.repeat(widths, counts)

    @property
    def width(self) -> int:
        """Maximum length of a text, in tokens."""
        return max(width for _, width in self.buckets)


@flax.struct.dataclass
class Tokens:
    """Padded token ids of texts: B of them, or [B, K] for hard negatives.

    Attributes:
      ids: int32 [B, L], the pad id where the mask is false.
      mask: bool [B, L], true at real tokens (special tokens included); every row starts with its real tokens.
      packing: layout for encoders, for the number of texts that are encoded at a time; None: padded rows.
      second: int32 [B], start of the second of two joined texts; None: each is one text.
    """

    ids: Array
    mask: Array
    packing: Packing | None = flax.struct.field(pytree_node=False, default=None)
    second: Array | None = None

    @property
    def lengths(self) -> Array:
        """Number of real tokens of each text, int32 [B] or [B, K]."""
        return jnp.sum(self.mask, axis=-1, dtype=jnp.int32)

    @property
    def places(self) -> int:
        """Number of token positions in a row of the batch."""
        return math.prod(self.ids.shape[1:])


@flax.struct.dataclass
class Vectors:
    """Vectors of B texts from the frozen part of a tower, below its head: see `models.tower.Tower.base`.

    Attributes:
      values: float32 [B, D]; or [B, K, D] for hard negatives.
    """

    values: Array

    @property
    def lengths(self) -> Array:
        """Lengths as in `Tokens`: zeros, since no tokens are left."""
        return jnp.zeros(self.values.shape[:-1], jnp.int32)

    @property
    def places(self) -> int:
        """Places as in `Tokens`."""
        return 0


# What a tower is given of B texts.
Texts = Tokens | Vectors


@flax.struct.dataclass
class Batch:
    """A global batch of B question-answer pairs; row i of `question` belongs to row i of `answer`.

    Ids are indices into de-duplicated tables, so that equal texts have equal ids wherever they stand in the global
    batch, and false negatives can be masked exactly.

    Attributes:
      question: the questions.
      answer: the answers, in the same form as the questions.
      question_id: int32 [B], row in the question table.
      answer_id: int32 [B], row in the answer table.
      positive_ids: int32 [B, P], answer ids known to be right for the question, -1 where fewer than P are known.
      hard_negatives: [B, K] wrong answers that are similar to right ones; None if training uses none.
      hard_negative_ids: int32 [B, K], rows in the answer table; -1 where one is missing, whose tokens are ignored.
    """

    question: Texts
    answer: Texts
    question_id: Array
    answer_id: Array
    positive_ids: Array
    hard_negatives: Texts | None = None
    hard_negative_ids: Array | None = None

    @property
    def sides(self) -> list[Texts]:
        """Returns all texts of the batch: questions, answers, and hard negatives if there are any."""
        return [side for side in (self.question, self.answer, self.hard_negatives) if side is not None]
