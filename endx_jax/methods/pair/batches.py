"""Batches of joined pairs: each question with its own answer and with wrong answers.

Question and answer form one text of two segments, BERT's format for pairs (Devlin et al. 2019, section 3).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, cast

import flax.struct
import jax
import numpy as np

from endx_jax.batch import Tokens
from endx_jax.data.batches.collator import BatchSide, Collator, RowsOfProcess
from endx_jax.data.batches.ragged import concatenated_ranges
from endx_jax.data.batches.sampler import Drawn
from endx_jax.data.batches.token_tables import Pairs, TokenTable
from endx_jax.errors import EndxError

Array = jax.Array

SIDE = "pairs"


@flax.struct.dataclass
class PairBatch:
    """A global batch of B questions, each joined with 1 + K answers.

    Attributes:
      pairs: [B, 1 + K] texts: the question joined with its own answer, then with K wrong ones.
      where: bool [B, 1 + K], false for padding, which fills up questions with fewer than K wrong answers.
      question_id: int32 [B], rows of the question table.
    """

    pairs: Tokens
    where: Array
    question_id: Array

    @property
    def sides(self) -> list[Tokens]:
        """Returns all texts of the batch."""
        return [self.pairs]


@dataclasses.dataclass(frozen=True)
class PairCollator(Collator):
    """Makes batches of joined pairs.

    The wrong answers of a question are its hard negatives, if the run uses them, and then answers of the same global
    batch, drawn without repetition by (seed, step, row). Known right answers are never drawn.

    Attributes:
      negatives: number of wrong answers of the same batch that each question is joined with.
    """

    negatives: int = 0

    @property
    def limits(self) -> dict[str, int]:
        """Maximum length of a joined pair, in tokens."""
        return {SIDE: self.pairs.question_length + self.pairs.answer_length - 1}

    def mean_lengths(self) -> dict[str, float]:
        """Returns the mean length of the right pairs."""
        mean = super().mean_lengths()
        return {SIDE: mean["question"] + mean["answer"]}

    def sides(self, drawn: Drawn) -> dict[str, BatchSide]:
        """Returns the B (1 + K) joined texts of a global batch."""
        question_id, answer_id, hard = drawn.question_id, drawn.answer_id, drawn.hard_id
        answers = np.concatenate([answer_id[:, None], hard, self.draw_in_batch(drawn)], axis=1)
        where = answers >= 0
        # The question's own answer fills missing places, so they do not increase the padded width.
        answers = np.where(where, answers, answer_id[:, None])
        questions = np.broadcast_to(question_id[:, None], answers.shape)
        tables = cast(TokenTable, self.pairs.questions), cast(TokenTable, self.pairs.answers)
        joined = join_texts(*tables, np.stack([questions.ravel(), answers.ravel()], axis=1))
        return {SIDE: BatchSide(joined, np.arange(where.size).reshape(where.shape), where)}

    def batch(  # type: ignore[override]  # another batch, for another objective
        self, drawn: Drawn, sides: Mapping[str, BatchSide], texts: Mapping[str, Any], rows: RowsOfProcess
    ) -> PairBatch:
        """Returns this process's rows of a batch, with NumPy leaves."""
        where = cast(np.ndarray, sides[SIDE].present)
        arrays: dict[str, Any] = {"where": where[rows], "question_id": drawn.question_id[rows]}
        return PairBatch(**texts, **arrays)

    def draw_in_batch(self, drawn: Drawn) -> np.ndarray:
        """Draws N answers of the batch for each question, int [B, N], none of them right or hard; pads with -1."""
        candidates = np.unique(drawn.answer_id)
        everywhere = np.broadcast_to(candidates, (len(drawn.question_id), len(candidates)))
        allowed = self.pairs.positives.find(drawn.question_id, everywhere) < 0
        for column in drawn.hard_id.T:
            allowed &= candidates != column[:, None]
        wanted = min(self.negatives, len(candidates))
        lots = np.random.default_rng([*drawn.key, 2]).random(allowed.shape)
        first = np.argsort(np.where(allowed, lots, 2.0), axis=1)[:, :wanted]
        wrong = np.where(np.take_along_axis(allowed, first, axis=1), candidates[first], -1)
        return np.pad(wrong, ((0, 0), (0, self.negatives - wanted)), constant_values=-1)


def pair_collator(pairs: Pairs, settings: Any, hard_negatives: int) -> PairCollator:
    """Returns the collator of joined pairs: `Method.collator`.

    Raises:
      EndxError: there are no wrong answers at all.
    """
    if settings.negatives + hard_negatives == 0:
        raise EndxError(
            "a pair classifier needs wrong answers to train: set objective.negatives or data.hard_negatives"
        )
    return PairCollator(pairs, settings.negatives)


def join_texts(
    first: TokenTable, second: TokenTable, rows: np.ndarray, between: Sequence[int] = (), limit: int = 0
) -> TokenTable:
    """Joins texts of two tables as `[CLS] first [SEP] second [SEP]`.

    Both tables hold texts as `[CLS] text [SEP]`; the `[CLS]` of the second text is dropped.

    Args:
      first: table of first texts.
      second: table of second texts.
      rows: int [N, 2], the rows of both tables to join.
      between: ids that take the place of the second text's `[CLS]`; RoBERTa has a second `[SEP]` there.
      limit: maximum length of a pair; longer ones are cut as transformers' `longest_first` does. 0: none are.

    Returns:
      The table of N joined texts; `truncated` is true where the second text was, and `second` is where it starts.
    """
    begins = first.offsets[rows[:, 0]], second.offsets[rows[:, 1]] + 1
    whole = lengths = first.length_of(rows[:, 0]), second.length_of(rows[:, 1]) - 1
    if limit:
        texts = longest_first(lengths[0] - 2, lengths[1] - 1, limit - 3 - len(between))
        lengths = texts[0] + 2, texts[1] + 1
    cut = (lengths[1] < whole[1]) | (False if second.truncated is None else second.truncated[rows[:, 1]])
    seconds = lengths[0] + len(between)
    table = TokenTable.from_lengths(np.empty(0, np.int32), seconds + lengths[1], first.pad_id)
    ids = np.empty(table.offsets[-1], np.int32)
    starts = table.offsets[:-1], table.offsets[:-1] + seconds
    for n, id_ in enumerate(between, start=-len(between)):
        ids[starts[1] + n] = id_
    for source, begin, start, length, uncut in zip((first, second), begins, starts, lengths, whole, strict=True):
        ids[concatenated_ranges(start, length)] = source.ids[concatenated_ranges(begin, length)]
        ids[start + length - 1] = source.ids[begin + uncut - 1]  # the [SEP] of a text that was cut
    return TokenTable(ids, table.offsets, first.pad_id, cut, seconds.astype(np.int32))


def longest_first(first: np.ndarray, second: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the lengths of pairs of texts, int [N] each, after truncation to `room` tokens.

    The longer text is cut until both are equally long, and then both are cut, as in transformers.
    """
    shorter = np.minimum(np.minimum(first, second), room // 2)
    longer = np.minimum(np.maximum(first, second), room - shorter)
    return np.where(first > second, longer, shorter), np.where(first > second, shorter, longer)
