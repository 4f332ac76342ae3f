"""The one batch type: what every model encodes and every objective receives."""

import dataclasses
import math

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from endx_jax.errors import EndxError

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class Packing:
    """The room in which texts are encoded end to end, without padding each to the longest: see models/layout.py.

    Attributes:
      tokens: T, of all texts together at most.
      buckets: (texts, width in tokens) of rows for what brings the tokens of a text together, such as attention: the
        shortest texts go into the first. The texts add up to all there are.
    """

    tokens: int
    buckets: tuple[tuple[int, int], ...]

    @property
    def row_widths(self) -> np.ndarray:
        """Int [B], the width of each text's row, in order of length."""
        counts, widths = zip(*self.buckets, strict=True)
        return np.repeat(widths, counts)

    @property
    def width(self) -> int:
        """The longest text that there is room for, in tokens."""
        return max(width for _, width in self.buckets)


@flax.struct.dataclass
class Tokens:
    """Padded token ids of texts: B of them, or [B, K] for hard negatives.

    Attributes:
      ids: int32 [B, L], the pad id where the mask is false.
      mask: bool [B, L], true at real tokens (special tokens included); every row starts with its real tokens.
      packing: how an encoder is to lay them out, for as many texts as it is given at a time; None: as they are.
      second: int32 [B], where the second of two texts that were joined begins; None: each is one text.
    """

    ids: Array
    mask: Array
    packing: Packing | None = flax.struct.field(pytree_node=False, default=None)
    second: Array | None = None

    @property
    def lengths(self) -> Array:
        """Int32 [B], or [B, K]: the real tokens of each text."""
        return jnp.sum(self.mask, axis=-1, dtype=jnp.int32)

    @property
    def places(self) -> int:
        """Places for tokens in a row of the batch."""
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


def as_tokens(texts: Texts, reader: str) -> Tokens:
    """The texts of what reads their tokens; raises EndxError, naming that `reader`, where only vectors of them came."""
    if isinstance(texts, Vectors):
        raise EndxError(f"{reader} reads tokens, and model.sharing=residual trains on vectors: choose another sharing")
    return texts


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
      hard_negatives: [B, K] texts that look right for the question and are not; None where training uses none.
      hard_negative_ids: int32 [B, K], rows in the answer table; -1 where one is missing, whatever its tokens are.
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
        """All texts of the batch: questions, answers, and hard negatives where there are any."""
        return [side for side in (self.question, self.answer, self.hard_negatives) if side is not None]
