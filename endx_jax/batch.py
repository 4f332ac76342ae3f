"""The one batch type: what every model encodes and every objective receives."""

import flax.struct
import jax

Array = jax.Array


@flax.struct.dataclass
class Tokens:
    """Padded token ids of texts: B of them, or [B, K] for hard negatives.

    Attributes:
      ids: int32 [B, L], the pad id where the mask is false.
      mask: bool [B, L], true at real tokens (special tokens included); every row starts with its real tokens.
    """

    ids: Array
    mask: Array


@flax.struct.dataclass
class Batch:
    """A global batch of B question-answer pairs; row i of `question` belongs to row i of `answer`.

    Ids are indices into de-duplicated tables, so that equal texts have equal ids wherever they stand in the global
    batch, and false negatives can be masked exactly.

    Attributes:
      question: the questions.
      answer: the answers.
      question_id: int32 [B], row in the question table.
      answer_id: int32 [B], row in the answer table.
      positive_ids: int32 [B, P], answer ids known to be right for the question, -1 where fewer than P are known.
      hard_negatives: [B, K] texts that look right for the question and are not; None where training uses none.
      hard_negative_ids: int32 [B, K], rows in the answer table; -1 where one is missing, whatever its tokens are.
    """

    question: Tokens
    answer: Tokens
    question_id: Array
    answer_id: Array
    positive_ids: Array
    hard_negatives: Tokens | None = None
    hard_negative_ids: Array | None = None
