"""Rows of values with different lengths, such as the tokens of texts or the right answers of questions."""

import dataclasses
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class Ragged:
    """Rows of values with different lengths, held as one array; indexing pads them.

    Attributes:
      values: [T], all rows one after another; may be mapped from a file.
      offsets: int64 [N + 1]; row i is `values[offsets[i]:offsets[i + 1]]`. May be mapped from a file.
      width: length of the longest row, at least 1.
      fill: value of padding.
    """

    values: np.ndarray
    offsets: np.ndarray
    width: int
    fill: float = -1

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[float]], dtype: type = np.int32, fill: float = -1) -> "Ragged":
        """Concatenates rows."""
        lengths = [len(row) for row in rows]
        values: np.ndarray = np.asarray([value for row in rows for value in row], dtype)
        return cls(values, offsets_of(lengths), max(lengths, default=0) or 1, fill)

    @classmethod
    def from_array(cls, rows: np.ndarray) -> "Ragged":
        """Returns rows of equal length, [N, width]."""
        count, width = rows.shape
        return cls(rows.ravel(), np.arange(count + 1) * width, width)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        """Returns the values of `rows` [...], padded to `width`, [..., width]."""
        return self.pad(rows, self.width)

    def pad(self, rows: np.ndarray, width: int) -> np.ndarray:
        """Returns the first `width` values of `rows` [...], padded, [..., width]."""
        starts = self.offsets[rows]
        lengths = np.minimum(self.offsets[np.asarray(rows) + 1] - starts, width)
        return padded(self.values, starts, lengths, width, self.fill, self.values.dtype)[0]

    def find(self, rows: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        """Returns the index in `values`, [B, K], of each wanted value; -1 if its row lacks it.

        Row `rows[b]` is searched for `wanted[b]`; the values of a row must ascend. Memory does not depend on the
        lengths of the rows.
        """
        if not len(self.values):
            return np.full(wanted.shape, -1)
        last = len(self.values) - 1
        low, end = (np.repeat(self.offsets[rows + n][:, None], wanted.shape[1], axis=1) for n in (0, 1))
        high = end
        while (open_ := low < high).any():
            middle = (low + high) // 2
            below = self.values[np.minimum(middle, last)] < wanted
            low, high = np.where(open_ & below, middle + 1, low), np.where(open_ & ~below, middle, high)
        return np.where((low < end) & (self.values[np.minimum(low, last)] == wanted), low, -1)

    def row(self, row: int) -> np.ndarray:
        """Returns the values of one row without padding."""
        return self.values[self.offsets[row] : self.offsets[row + 1]]


def offsets_of(lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    """Returns the offsets, int64 [N + 1], of rows with the given lengths [N]."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def concatenated_ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Concatenates the ranges [start, start + length) of starts [N] and lengths [N]."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(lengths.sum())


def padded(
    values: np.ndarray, starts: np.ndarray, lengths: np.ndarray, width: int, fill: float, dtype: np.dtype | type
) -> tuple[np.ndarray, np.ndarray]:
    """Gathers rows from concatenated values.

    Args:
      values: [T].
      starts: int [...], the place of each row's first value.
      lengths: int [...], number of values of each row, at most `width`.
      width: width to pad to.
      fill: value of padding.
      dtype: type of the result.

    Returns:
      The rows, [..., width], and bool [..., width], true for their values.
    """
    mask = np.arange(width) < lengths[..., None]
    rows = np.full(mask.shape, fill, dtype)
    rows[mask] = values[concatenated_ranges(starts.ravel(), lengths.ravel())]
    return rows, mask
