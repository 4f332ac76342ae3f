"""Tokenizers and text processors, which convert texts to token tables."""

import dataclasses
import functools
import hashlib
import importlib.metadata
import itertools
import pathlib
from collections.abc import Sequence

import numpy as np

from endx_jax.data.token_tables import TokenCache, TokenTable, content_key
from endx_jax.data.tokenizer_files import load_tokenizer
from endx_jax.errors import EndxError

CHUNK = 10_000  # texts that are tokenized at once: enough for all cores, few enough to limit memory


class Tokenizer:
    """Hugging Face tokenizer.

    Attributes:
      folder: folder it was loaded from.
      pad_id: padding id.
    """

    def __init__(self, folder: pathlib.Path | str):
        """Loads a tokenizer from `tokenizer.json` or from a format that transformers converts.

        Raises:
          EndxError: the folder holds no usable tokenizer.
        """
        self.folder = pathlib.Path(folder)
        self._loaded = load_tokenizer(self.folder)
        if self._loaded.pad_id is None:
            raise EndxError(f"the tokenizer in {folder} has no padding token; set one in its tokenizer_config.json")
        self.pad_id = self._loaded.pad_id

    @functools.cached_property
    def fingerprint(self) -> str | None:
        """sha256 of the state that determines its ids; None for tokenizers written in Python."""
        if self._loaded.state is None:
            return None
        return hashlib.sha256(self._loaded.state().encode()).hexdigest()

    @property
    def identity(self) -> str | None:
        """Fingerprint and the library's version, which may change ids as well; None without a fingerprint."""
        if self.fingerprint is None:
            return None
        return f"{self.fingerprint} tokenizers {importlib.metadata.version('tokenizers')}"

    def same_ids(self, other: "Tokenizer") -> bool:
        """Returns true if two tokenizers are known to give the same ids for every text."""
        return self is other or (self.fingerprint is not None and self.fingerprint == other.fingerprint)

    def check_matches(self, vocab_size: int, pad_id: int, where: object) -> None:
        """Raises EndxError if the tokenizer does not match an encoder.

        Args:
          vocab_size: number of rows of the encoder's token table.
          pad_id: padding id of the encoder.
          where: folder of the encoder, for the message.
        """
        if self._loaded.size > vocab_size:
            reason = f"its largest id is {self._loaded.size - 1} and the weights have {vocab_size} rows"
        elif self.pad_id != pad_id:
            reason = f"it pads with id {self.pad_id} and the weights expect {pad_id}"
        else:
            return
        raise EndxError(
            f"the tokenizer in {self.folder} does not match the weights in {where}: {reason}; "
            "use the tokenizer files that were published with these weights"
        )

    def __call__(self, texts: Sequence[str], max_length: int) -> TokenTable:
        """Tokenizes texts, each truncated to `max_length` tokens, special tokens included."""
        parts, lengths, cut = [np.zeros(0, np.int32)], list[int](), 0
        for start in range(0, len(texts), CHUNK):
            encoded, longer = self._loaded.encode(texts[start : start + CHUNK], max_length)
            rows = list(encoded)
            lengths += map(len, rows)
            parts.append(np.fromiter(itertools.chain.from_iterable(rows), np.int32))
            cut += longer
        return TokenTable.from_lengths(np.concatenate(parts), np.asarray(lengths, np.int64), self.pad_id, cut)

    def save(self, folder: pathlib.Path) -> None:
        """Writes the tokenizer's files into `folder`."""
        self._loaded.save(folder)


@dataclasses.dataclass(frozen=True)
class TextProcessor:
    """Tokenizer of a tower's texts, with their prompt, maximum length and cache.

    Attributes:
      tokenizer: tokenizer of the tower.
      length: maximum length of a text in tokens, prompt and special tokens included.
      prompt: string prepended to every text.
      cache: cache of tokens on disk; None for no cache.
    """

    tokenizer: Tokenizer
    length: int
    prompt: str = ""
    cache: TokenCache | None = None

    def __call__(self, texts: Sequence[str]) -> TokenTable:
        """Tokenizes N texts, or reads their tokens from the cache."""
        if self.cache is None or self.tokenizer.identity is None:
            return self._tokenize(texts)
        key = content_key(texts, self.tokenizer.identity, self.prompt, self.length)
        cached = self.cache.read(key)
        if cached is not None:
            return TokenTable.from_lengths(*cached, self.tokenizer.pad_id)
        table = self._tokenize(texts)
        self.cache.write(key, table.ids, table.lengths)
        return table

    def describe_cut(self, cut: int, documents: int) -> str:
        """Returns a line about `cut` of `documents` documents that are too long, and what to do about it."""
        return (
            f"{cut:,} of {documents:,} documents reach the limit of {self.length} tokens: only their beginnings are "
            "embedded; split them into passages, or train with a larger --config.data.answer_length"
        )

    def _tokenize(self, texts: Sequence[str]) -> TokenTable:
        return self.tokenizer([self.prompt + text for text in texts] if self.prompt else texts, self.length)
