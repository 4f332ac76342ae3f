"""Tables of tokens or vectors of texts, and the cache of tokens on disk.

A cache entry is one `.npy` file: int32 [N, checksum, lengths of the N texts, their ids end to end]. It is mapped into
memory, so it may be larger than memory. Nothing in it is executed. An entry with wrong sizes or a wrong checksum counts
as missing and is written again.
"""

import dataclasses
import functools
import hashlib
import os
import zlib
from collections.abc import Sequence

import numpy as np

from endx_jax.batch import Tokens, Vectors
from endx_jax.data.ragged import offsets_of, padded
from endx_jax.files import CacheFolder
from endx_jax.numerics import round_up


@dataclasses.dataclass(frozen=True)
class TokenTable:
    """Token ids of N texts, concatenated.

    Attributes:
      ids: integers [T], all texts one after another; may be mapped from a file.
      offsets: int64 [N + 1]; text i is `ids[offsets[i]:offsets[i + 1]]`. May be mapped from a file.
      pad_id: padding id.
      cut: number of texts that were truncated; 0 for tables from the cache, which does not store it.
      second: int32 [N], start of the second text in each pair of joined texts; None if texts are not joined.
    """

    ids: np.ndarray
    offsets: np.ndarray
    pad_id: int
    cut: int = 0
    second: np.ndarray | None = None

    @classmethod
    def from_lengths(cls, ids: np.ndarray, lengths: np.ndarray, pad_id: int, cut: int = 0) -> "TokenTable":
        """Returns the table of ids [T] whose N texts have the given lengths [N]."""
        return cls(ids, offsets_of(lengths), pad_id, cut)

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each text, int64 [N]."""
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def length_of(self, rows: np.ndarray) -> np.ndarray:
        """Returns the number of tokens of the texts in `rows` [...], int64 [...], without reading other rows."""
        return self.offsets[rows + 1] - self.offsets[rows]

    def pad(self, rows: np.ndarray, length: int) -> Tokens:
        """Returns the texts in `rows` [...], padded to `length`, as NumPy `Tokens` [..., length]; none is truncated."""
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

    @property
    def lengths(self) -> np.ndarray:
        """Zeros, int64 [N], since there are no tokens."""
        return np.zeros(len(self.values), np.int64)

    def __len__(self) -> int:
        return len(self.values)

    def length_of(self, rows: np.ndarray) -> np.ndarray:
        """Returns the numbers of tokens of `rows` [...]: zeros, since vectors have none."""
        return np.zeros(rows.shape, np.int64)

    def pad(self, rows: np.ndarray, length: int) -> Vectors:
        """Returns the vectors in `rows` [...] as NumPy `Vectors` [..., D]; `length` is ignored."""
        del length
        return Vectors(self.values[rows])


# Part of every key, so that entries of another layout are not found.
LAYOUT = "endx_jax tokens 1"
HEADER = 2
CHUNK = 10_000


def content_key(texts: Sequence[str], *about: object) -> str:
    """Returns the sha256, in hexadecimal, of texts and everything else that determines a cache entry.

    Texts are hashed in chunks as (count, lengths, bytes), so that the boundaries between texts matter.

    Args:
      texts: N texts.
      *about: further values that determine the entry: tokenizer, prompt, length.
    """
    digest = hashlib.sha256(repr((LAYOUT, *about)).encode())
    for start in range(0, len(texts), CHUNK):
        encoded = [text.encode("utf-8", "surrogatepass") for text in texts[start : start + CHUNK]]
        digest.update(np.array([len(encoded), *map(len, encoded)], "<i8").tobytes())
        digest.update(b"".join(encoded))
    return digest.hexdigest()


class TokenCache:
    """Cache of tokens in a folder, by the key of their texts."""

    def __init__(self, folder: str | os.PathLike):
        """Expands `~` in the path; creates nothing yet."""
        self._folder = CacheFolder(folder)

    def read(self, key: str) -> tuple[np.ndarray, np.ndarray] | None:
        """Returns the ids, mapped int32 [T], and lengths, int32 [N], of a key; None if they are missing or damaged."""
        try:
            # A plain array, since `np.memmap` adds time to every access.
            entry = np.asarray(np.load(self._folder.path(_name(key)), mmap_mode="r", allow_pickle=False))
        except (OSError, ValueError, EOFError):  # missing, truncated, or no array
            return None
        if entry.dtype != np.int32 or entry.ndim != 1 or len(entry) < HEADER:
            return None
        (count, checksum), body = entry[:HEADER].tolist(), entry[HEADER:]
        if checksum != _checksum(key, body) or not 0 <= count <= len(body):
            return None
        lengths, ids = np.array(body[:count]), body[count:]
        return (ids, lengths) if lengths.sum(dtype=np.int64) == len(ids) else None

    def write(self, key: str, ids: np.ndarray, lengths: np.ndarray) -> None:
        """Stores ids, int [T], and lengths, int [N], under a key."""
        body = np.concatenate([lengths, ids], dtype=np.int32, casting="unsafe")
        header = np.array([len(lengths), _checksum(key, body)], np.int32)
        self._folder.write(_name(key), lambda stream: np.save(stream, np.concatenate([header, body])))


def _name(key: str) -> str:
    return f"tokens-{key}.npy"


def _checksum(key: str, body: np.ndarray) -> int:
    """Returns the CRC-32 of an entry's key and body as int32; the key ensures that entries are not interchanged."""
    crc = zlib.crc32(np.ascontiguousarray(body).data, zlib.crc32(key.encode()))
    return int(np.uint32(crc).view(np.int32))
