"""Question and answer as one text of two segments, as BERT reads pairs (Devlin et al. 2019, section 3)."""

import numpy as np

from endx_jax.data.tokenization import TokenTable


def join(first: TokenTable, second: TokenTable, rows: np.ndarray) -> TokenTable:
    """Joins texts of two tables: `[CLS] first [SEP] second [SEP]`.

    Each text stands in its table as `[CLS] text [SEP]`; the second's `[CLS]` is left out.

    Args:
      first: the texts that come first.
      second: the texts that come second.
      rows: int [N, 2], of both tables.

    Returns:
      The table of N joined texts, with their `second`.
    """
    begins = first.offsets[rows[:, 0]], second.offsets[rows[:, 1]] + 1
    lengths = first.lengths[rows[:, 0]], second.lengths[rows[:, 1]] - 1
    table = TokenTable.of_lengths(np.empty(0, np.int32), lengths[0] + lengths[1], first.pad_id)
    ids = np.empty(table.offsets[-1], np.int32)
    starts = table.offsets[:-1], table.offsets[:-1] + lengths[0]
    for source, begin, start, length in zip((first, second), begins, starts, lengths, strict=True):
        ids[_places(start, length)] = source.ids[_places(begin, length)]
    return TokenTable(ids, table.offsets, first.pad_id, second=lengths[0].astype(np.int32))


def _places(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """start, start + 1, ..., of each of the lengths, one after another."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(lengths.sum())
