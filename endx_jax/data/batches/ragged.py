"""Rows of values with different lengths, such as the tokens of texts or the right answers of questions."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from endx_jax.errors import EndxError
from endx_jax.numerics import Quantized, dequantize


class Rows:
    """N rows of different lengths, one after another: row i is at `offsets[i]:offsets[i + 1]`."""

    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """Length of each row, such as the number of tokens of a text, int64 [N]."""
        return np.diff(self.offsets)

    def length_of(self, rows: np.ndarray) -> np.ndarray:
        """Returns the lengths of `rows` [...], int64 [...], without reading other offsets."""
        return self.offsets[np.asarray(rows) + 1] - self.offsets[rows]


@dataclasses.dataclass(frozen=True)
class Ragged(Rows):
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

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        """Returns the values of `rows` [...], padded to `width`, [..., width]."""
        return self.pad(rows, self.width)

    def pad(self, rows: np.ndarray, width: int) -> np.ndarray:
        """Returns the first `width` values of `rows` [...], padded, [..., width]."""
        lengths = np.minimum(self.length_of(rows), width)
        return padded(self.values, self.offsets[rows], lengths, width, self.fill, self.values.dtype)[0]

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


@dataclasses.dataclass(frozen=True)
class RaggedVectors(Rows):
    """Vectors of the tokens of N texts, of different lengths, held as one array; iterating yields those of each text.

    Attributes:
      values: [T, E], all texts one after another; or `Quantized`, codes [T, E] and scales [T].
      offsets: int64 [N + 1]; text i has `values[offsets[i]:offsets[i + 1]]`.
    """

    values: Any
    offsets: np.ndarray

    @classmethod
    def of(cls, texts: Sequence[Any], width: int = 0) -> "RaggedVectors":
        """Concatenates the vectors of texts, each [L, E] or `Quantized`; `width` is E if there are none.

        Raises:
          EndxError: their widths differ.
        """
        lengths = [len(_codes(text)) for text in texts]
        some = [text for text, length in zip(texts, lengths, strict=True) if length]
        check_widths(some)
        return cls(concatenate(some or texts) if texts else np.zeros((0, width), np.float32), offsets_of(lengths))

    def __getitem__(self, rows: Any) -> Any:
        """Returns the vectors of one text, [L, E] as in `values`; or of several, by a slice or an array of rows."""
        if isinstance(rows, int | np.integer):
            return take(self.values, slice(*self.offsets[rows : rows + 2])) if rows >= 0 else self[len(self) + rows]
        starts, lengths = self.offsets[:-1][rows], self.lengths[rows]
        return RaggedVectors(take(self.values, concatenated_ranges(starts, lengths)), offsets_of(lengths))

    def __iter__(self) -> Iterator[Any]:
        return (self[row] for row in range(len(self)))

    def floats(self) -> "RaggedVectors":
        """Returns the vectors as float32, dequantized if they are `Quantized`."""
        return RaggedVectors(np.asarray(dequantize(self.values), np.float32), self.offsets)

    def pad(self, rows: np.ndarray, count: int, length: int) -> tuple[Any, Any]:
        """Returns vectors [count, length, E] of the texts in `rows`, padded with zeros, and bool [count, length]."""
        starts, lengths = np.zeros((2, count), np.int64)
        starts[: len(rows)], lengths[: len(rows)] = self.offsets[:-1][rows], self.lengths[rows]
        return padded(self.values, starts, lengths, length, 0, np.float32)


def pad_rows(rows: Sequence[Sequence], fill: float, dtype: type) -> np.ndarray:
    """Returns rows as an array [len(rows), max(longest row, 1)], padded with a value."""
    return Ragged.from_rows(rows, dtype, fill)[np.arange(len(rows))]


def check_widths(embeddings: Sequence[Any]) -> None:
    """Raises EndxError if the widths of token vectors [L, E] differ."""
    widths = sorted({_codes(values).shape[1] for values in embeddings})
    if len(widths) > 1:
        raise EndxError(f"token embeddings have {' and '.join(map(str, widths))} dimensions: encode with one model")


def concatenate(parts: Sequence[Any]) -> Any:
    """Concatenates embeddings [n, E], quantized ones, or `RaggedVectors`; all of them of one kind."""
    if isinstance(parts[0], RaggedVectors):
        lengths = np.concatenate([part.lengths for part in parts])
        return RaggedVectors(concatenate([part.values for part in parts]), offsets_of(lengths))
    if isinstance(parts[0], Quantized):
        return Quantized(*map(np.concatenate, zip(*parts, strict=True)))
    return np.concatenate(parts)


def take(values: Any, rows: Any) -> Any:
    """Returns rows of embeddings [n, E], of quantized ones, or of `RaggedVectors`."""
    return Quantized(values.codes[rows], values.scales[rows]) if isinstance(values, Quantized) else values[rows]


def _codes(values: Any) -> Any:
    return values.codes if isinstance(values, Quantized) else values


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
      values: [T, ...].
      starts: int [...], the place of each row's first value.
      lengths: int [...], number of values of each row, at most `width`.
      width: width to pad to.
      fill: value of padding.
      dtype: type of the result.

    Returns:
      The rows, [..., width] with the further axes of values, and bool [..., width], true for their values.
    """
    mask = np.arange(width) < lengths[..., None]
    rows = np.full((*mask.shape, *values.shape[1:]), fill, dtype)
    rows[mask] = values[concatenated_ranges(starts.ravel(), lengths.ravel())]
    return rows, mask
