"""Texts to token ids: once, kept ragged, and padded only when a batch is made."""

import dataclasses
import functools
import hashlib
import importlib.metadata
import itertools
import pathlib
from collections.abc import Sequence

import numpy as np

from endx_jax.batch import Tokens
from endx_jax.data.token_cache import TokenCache, content_key
from endx_jax.data.tokenizer_files import load_tokenizer
from endx_jax.errors import EndxError
from endx_jax.numerics import round_up

# Texts handed to the tokenizer at once: enough for all cores, few enough that Python's lists of ids stay small.
CHUNK = 10_000


@dataclasses.dataclass(frozen=True)
class TokenTable:
    """Token ids of N texts, end to end.

    Attributes:
      ids: int32 [T], all texts one after another; may be mapped from a file.
      offsets: int64 [N + 1]; text i is `ids[offsets[i]:offsets[i + 1]]`.
      pad_id: what fills a padded array.
      cut: how many of the texts were longer, and cut when they were tokenised; a cache does not know, and says 0.
      second: int32 [N], where the second of two texts that were joined begins: see `join`; None: each is one text.
    """

    ids: np.ndarray
    offsets: np.ndarray
    pad_id: int
    cut: int = 0
    second: np.ndarray | None = None

    @classmethod
    def of_lengths(cls, ids: np.ndarray, lengths: np.ndarray, pad_id: int, cut: int = 0) -> "TokenTable":
        """The table of ids [T] whose N texts have these lengths [N]."""
        offsets = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        return cls(ids, offsets, pad_id, cut)

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """int64 [N], tokens of each text."""
        return np.diff(self.offsets)

    def pad(self, rows: np.ndarray, length: int) -> Tokens:
        """The given texts padded (never cut) to `length`: NumPy `Tokens` [..., length] for rows [...]."""
        lengths = self.lengths[rows]
        mask = np.arange(length) < lengths[..., None]
        # Only real tokens are fetched: where each stands in `ids`, text after text.
        lengths, starts = lengths.ravel(), self.offsets[rows].ravel()
        places = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
        places += np.arange(len(places))
        ids = np.full(mask.shape, self.pad_id, np.int32)
        ids[mask] = self.ids[places]
        second = None if self.second is None else self.second[rows]
        # They are put on devices as a whole batch, later.
        return Tokens(ids=ids, mask=mask, second=second)  # type: ignore[arg-type]


def padded_length(longest: int, limit: int, multiple: int) -> int:
    """The width to pad to: the next multiple, so that few shapes are compiled, and at most `limit`."""
    return min(round_up(max(int(longest), 1), multiple), limit)


class Tokenizer:
    """A Hugging Face tokenizer, as far as we use one.

    Attributes:
      folder: where it came from.
      pad_id: the id that padding has.
    """

    def __init__(self, folder: pathlib.Path | str):
        """Loads it from a folder's `tokenizer.json` or the slow formats that transformers converts.

        Raises:
          EndxError: when the folder holds none.
        """
        self.folder = pathlib.Path(folder)
        self._loaded = load_tokenizer(self.folder)
        if self._loaded.pad_id is None:
            raise EndxError(f"the tokenizer in {folder} has no padding token; set one in its tokenizer_config.json")
        self.pad_id = self._loaded.pad_id

    @functools.cached_property
    def fingerprint(self) -> str | None:
        """Other where its ids could be: sha256 of its state; None if it can't be known."""
        if self._loaded.state is None:
            return None
        return hashlib.sha256(self._loaded.state().encode()).hexdigest()

    @property
    def identity(self) -> str | None:
        """The fingerprint with the version of the library, whose next may make other ids of the same state."""
        if self.fingerprint is None:
            return None
        return f"{self.fingerprint} tokenizers {importlib.metadata.version('tokenizers')}"

    def same_ids(self, other: "Tokenizer") -> bool:
        """Whether this and another tokenizer are known to make the same ids of every text."""
        return self is other or (self.fingerprint is not None and self.fingerprint == other.fingerprint)

    def check_matches(self, vocab_size: int, pad_id: int, where: object) -> None:
        """Raises EndxError when this tokenizer's ids are not those of an encoder with this vocabulary.

        Args:
          vocab_size: rows of the encoder's token table.
          pad_id: the encoder's padding id.
          where: the encoder's folder, for the message.
        """
        if self._loaded.size > vocab_size:
            reason = f"it has {self._loaded.size} tokens and the weights have {vocab_size} rows"
        elif self.pad_id != pad_id:
            reason = f"it pads with id {self.pad_id} and the weights expect {pad_id}"
        else:
            return
        raise EndxError(
            f"the tokenizer in {self.folder} does not match the weights in {where}: {reason}; "
            "use the tokenizer files that were published with these weights"
        )

    def __call__(self, texts: Sequence[str], max_length: int) -> TokenTable:
        """Tokenises texts, each cut to `max_length` tokens with its special tokens."""
        parts, lengths, cut = [np.zeros(0, np.int32)], list[int](), 0
        for start in range(0, len(texts), CHUNK):
            encoded, longer = self._loaded.encode(texts[start : start + CHUNK], max_length)
            rows = list(encoded)
            lengths += map(len, rows)
            parts.append(np.fromiter(itertools.chain.from_iterable(rows), np.int32))
            cut += longer
        return TokenTable.of_lengths(np.concatenate(parts), np.asarray(lengths, np.int64), self.pad_id, cut)

    def save(self, folder: pathlib.Path) -> None:
        """Writes the tokenizer's files into `folder`."""
        self._loaded.save(folder)


@dataclasses.dataclass(frozen=True)
class Preparation:
    """How the texts of one side become tokens.

    Attributes:
      tokenizer: of that side's tower.
      length: tokens a text is cut to, prompt and special tokens included.
      prompt: stands before every text.
      cache: where tokens are kept for the next time; None to make them each time.
    """

    tokenizer: Tokenizer
    length: int
    prompt: str = ""
    cache: TokenCache | None = None

    def __call__(self, texts: Sequence[str]) -> TokenTable:
        """Tokenises N texts, or takes their tokens from the cache."""
        if self.cache is None or self.tokenizer.identity is None:
            return self._tokenize(texts)
        key = content_key(texts, self.tokenizer.identity, self.prompt, self.length)
        kept = self.cache.read(key)
        if kept is not None:
            return TokenTable.of_lengths(*kept, self.tokenizer.pad_id)
        table = self._tokenize(texts)
        self.cache.write(key, table.ids, table.lengths)
        return table

    def _tokenize(self, texts: Sequence[str]) -> TokenTable:
        return self.tokenizer([self.prompt + text for text in texts] if self.prompt else texts, self.length)
