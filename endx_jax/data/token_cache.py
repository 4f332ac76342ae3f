"""Token ids kept on disk under the hash of all they were made from, so that texts are tokenised once.

An entry is one `.npy` file: int32 [N, checksum, the N texts' lengths, their ids end to end]. It is mapped into memory
and not copied there, so it may be larger than that. Nothing in it is executed, and nothing in it is trusted: an entry
whose sizes or checksum are wrong counts as missing and is written again.
"""

import hashlib
import os
import zlib
from collections.abc import Sequence

import numpy as np

from endx_jax.data.cache_folder import CacheFolder

# Part of every key: entries of another layout are other entries.
LAYOUT = "endx_jax tokens 1"
HEADER = 2
CHUNK = 10_000


def content_key(texts: Sequence[str], *about: object) -> str:
    """sha256, in hexadecimal, of texts in order and of how they become tokens.

    Texts come in chunks as (count, lengths, bytes), so that where one ends and the next begins counts too.

    Args:
      texts: N texts.
      *about: what else decides about the ids: tokenizer, prompt, length.
    """
    digest = hashlib.sha256(repr((LAYOUT, *about)).encode())
    for start in range(0, len(texts), CHUNK):
        encoded = [text.encode("utf-8", "surrogatepass") for text in texts[start : start + CHUNK]]
        digest.update(np.array([len(encoded), *map(len, encoded)], "<i8").tobytes())
        digest.update(b"".join(encoded))
    return digest.hexdigest()


class TokenCache:
    """The tokens in a folder, by the key of their texts."""

    def __init__(self, folder: str | os.PathLike):
        """Makes nothing yet; `~` in the folder is the home directory."""
        self._folder = CacheFolder(folder)

    def read(self, key: str) -> tuple[np.ndarray, np.ndarray] | None:
        """The ids, int32 [T] and mapped, and lengths, int32 [N], under a key; None where there are no sound ones."""
        try:
            # As a plain array: NumPy's own class for files adds time to every access.
            entry = np.asarray(np.load(self._folder.path(_name(key)), mmap_mode="r", allow_pickle=False))
        except (OSError, ValueError, EOFError):  # missing, or shorter than it says, or no array
            return None
        if entry.dtype != np.int32 or entry.ndim != 1 or len(entry) < HEADER:
            return None
        (count, checksum), body = entry[:HEADER].tolist(), entry[HEADER:]
        if checksum != _checksum(key, body) or not 0 <= count <= len(body):
            return None
        lengths, ids = np.array(body[:count]), body[count:]
        return (ids, lengths) if lengths.sum(dtype=np.int64) == len(ids) else None

    def write(self, key: str, ids: np.ndarray, lengths: np.ndarray) -> None:
        """Keeps ids, int [T], and lengths, int [N], under a key."""
        body = np.concatenate([lengths, ids], dtype=np.int32, casting="unsafe")
        header = np.array([len(lengths), _checksum(key, body)], np.int32)
        self._folder.write(_name(key), lambda stream: np.save(stream, np.concatenate([header, body])))


def _name(key: str) -> str:
    return f"tokens-{key}.npy"


def _checksum(key: str, body: np.ndarray) -> int:
    """CRC-32 of an entry's body, as int32; the key is part of it, so that no entry passes for another."""
    crc = zlib.crc32(np.ascontiguousarray(body).data, zlib.crc32(key.encode()))
    return int(np.uint32(crc).view(np.int32))
