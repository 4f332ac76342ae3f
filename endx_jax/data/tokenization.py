"""Texts to token ids: once, kept ragged, and padded only when a batch is made."""

import dataclasses
import os
import pathlib
from collections.abc import Sequence

import numpy as np

from endx_jax.batch import Tokens
from endx_jax.errors import EndxError

CHUNK = 10_000


@dataclasses.dataclass(frozen=True)
class TokenTable:
    """Token ids of N texts, end to end.

    Attributes:
      ids: int32 [T], all texts one after another.
      offsets: int64 [N + 1]; text i is `ids[offsets[i]:offsets[i + 1]]`.
      pad_id: what fills a padded array.
    """

    ids: np.ndarray
    offsets: np.ndarray
    pad_id: int

    @property
    def lengths(self) -> np.ndarray:
        """int64 [N], tokens of each text."""
        return np.diff(self.offsets)

    def pad(self, rows: np.ndarray, length: int) -> Tokens:
        """The given texts padded (never cut) to `length`: NumPy `Tokens` [..., length] for rows [...]."""
        columns = np.arange(length)
        mask = columns < self.lengths[rows][..., None]
        places = np.minimum(self.offsets[rows][..., None] + columns, len(self.ids) - 1)
        ids = np.where(mask, self.ids[places], np.int32(self.pad_id))
        return Tokens(ids=ids, mask=mask)  # type: ignore[arg-type]  # they are put on devices as a whole batch, later


def padded_length(longest: int, limit: int, multiple: int) -> int:
    """The width to pad to: the next multiple, so that few shapes are compiled, and at most `limit`."""
    return min(-(-max(int(longest), 1) // multiple) * multiple, limit)


class Tokenizer:
    """A Hugging Face tokenizer, as far as we use one."""

    def __init__(self, folder: pathlib.Path | str):
        """Loads it from a folder's `tokenizer.json` or the slow formats that transformers converts.

        Raises:
          EndxError: when the folder holds none.
        """
        self.folder = pathlib.Path(folder)
        transformers = _transformers()
        try:
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        except (OSError, ValueError, ImportError) as failure:
            raise EndxError(f"{folder} holds no tokenizer that transformers can load: {_first_line(failure)}") from None
        if self._tokenizer.pad_token_id is None:
            raise EndxError(f"the tokenizer in {folder} has no padding token; set one in its tokenizer_config.json")

    @property
    def pad_id(self) -> int:
        """The id that padding has."""
        return self._tokenizer.pad_token_id

    def check_matches(self, vocab_size: int, pad_id: int, where: object) -> None:
        """Raises EndxError when this tokenizer's ids are not those of an encoder with this vocabulary.

        Args:
          vocab_size: rows of the encoder's token table.
          pad_id: the encoder's padding id.
          where: the encoder's folder, for the message.
        """
        if len(self._tokenizer) > vocab_size:
            reason = f"it has {len(self._tokenizer)} tokens and the weights have {vocab_size} rows"
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
        rows: list[np.ndarray] = []
        for start in range(0, len(texts), CHUNK):
            encoded = self._tokenizer(
                list(texts[start : start + CHUNK]),
                truncation=True,
                max_length=max_length,
                return_attention_mask=False,
                return_token_type_ids=False,
            )
            rows += [np.asarray(ids, np.int32) for ids in encoded["input_ids"]]
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        return TokenTable(np.concatenate(rows) if rows else np.zeros(1, np.int32), offsets, self.pad_id)

    def save(self, folder: pathlib.Path) -> None:
        """Writes the tokenizer's files into `folder`."""
        self._tokenizer.save_pretrained(str(folder))


@dataclasses.dataclass(frozen=True)
class Preparation:
    """How the texts of one side become tokens.

    Attributes:
      tokenizer: of that side's tower.
      length: tokens a text is cut to, prompt and special tokens included.
      prompt: stands before every text.
    """

    tokenizer: Tokenizer
    length: int
    prompt: str = ""

    def __call__(self, texts: Sequence[str]) -> TokenTable:
        """Tokenises N texts."""
        return self.tokenizer([self.prompt + text for text in texts] if self.prompt else texts, self.length)


def _transformers():
    """Imports transformers without its advice on frameworks that are not installed and not needed."""
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    import logging

    logging.getLogger("transformers").setLevel(logging.ERROR)
    import transformers

    return transformers


def _first_line(failure: Exception) -> str:
    return str(failure).strip().splitlines()[0] if str(failure).strip() else type(failure).__name__
