"""Loads a tokenizer from its folder: straight from `tokenizer.json` where that tells all, else as transformers does.

transformers takes a second to import, and another where PyTorch is installed, for what takes a hundredth of one.
"""

import dataclasses
import json
import os
import pathlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from endx_jax.errors import EndxError
from endx_jax.files import write_text

if TYPE_CHECKING:
    import tokenizers

JSON, CONFIG = "tokenizer.json", "tokenizer_config.json"

# Classes that add to `tokenizer.json` only what we compare, by the special tokens whose names they must be told.
BERT_TOKENS = ("unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
DIRECT = {
    "BertTokenizer": BERT_TOKENS,
    "BertTokenizerFast": BERT_TOKENS,
    "PreTrainedTokenizerFast": ("pad_token",),
    "TokenizersBackend": ("pad_token",),
}
# Options of BERT's normaliser: as tokenizer.json calls them, as the config does, and their default there.
NORMALIZER = (
    ("lowercase", "do_lower_case", True),
    ("handle_chinese_chars", "tokenize_chinese_chars", True),
    ("strip_accents", "strip_accents", None),
)


@dataclasses.dataclass(frozen=True)
class LoadedTokenizer:
    """A tokenizer, however it was loaded.

    Attributes:
      encode: (texts, length) to each text's ids, cut to that length with its special tokens, and how many were cut.
      pad_id: the id that padding has; None where it has no padding token.
      size: of the vocabulary, added tokens included.
      save: writes its files into a folder.
      state: gives a text that decides about all its ids; None for tokenizers written in Python, which have none.
    """

    encode: Callable[[Sequence[str], int], tuple[Iterable[list[int]], int]]
    pad_id: int | None
    size: int
    save: Callable[[pathlib.Path], None]
    state: Callable[[], str] | None


def load_tokenizer(folder: pathlib.Path) -> LoadedTokenizer:
    """Loads the tokenizer of a folder.

    Raises:
      EndxError: when it holds none.
    """
    # Else it works on one core, in a process that was forked.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    return _direct(folder) or _by_transformers(folder)


def _direct(folder: pathlib.Path) -> LoadedTokenizer | None:
    """Without transformers; None where the files leave something open or are broken, which transformers can tell."""
    import tokenizers

    try:
        state = (folder / JSON).read_text(encoding="utf-8")
        config, spec = json.loads((folder / CONFIG).read_text(encoding="utf-8")), json.loads(state)
    except (OSError, ValueError):
        return None
    if not _says_all(config, spec):
        return None
    backend = tokenizers.Tokenizer.from_str(state)
    pad_id = backend.token_to_id(_content(config["pad_token"]))

    def save(target: pathlib.Path) -> None:
        write_text(target / JSON, _state(backend))
        write_text(target / CONFIG, json.dumps(config, indent=2, ensure_ascii=False) + "\n")

    return _fast(backend, pad_id, backend.get_vocab_size(), save, config.get("truncation_side", "right"))


def _says_all(config: Mapping, spec: Mapping) -> bool:
    """Whether transformers would make nothing else of these two files than the second says."""
    named = [_content(value) for name, value in config.items() if name.endswith("_token") and value]
    named += map(_content, config.get("added_tokens_decoder", {}).values())
    special = {token["content"] for token in spec.get("added_tokens", ()) if token["special"]}
    normalizer = spec.get("normalizer") or {}
    return (
        config.get("tokenizer_class") in DIRECT
        and all(config.get(name) for name in DIRECT[config["tokenizer_class"]])
        and special.issuperset(named)
        and not any(config.get(name) for name in ("additional_special_tokens", "extra_special_tokens"))
        and not config.get("split_special_tokens")
        and (
            normalizer.get("type") != "BertNormalizer"
            or all(normalizer.get(ours) == config.get(theirs, default) for ours, theirs, default in NORMALIZER)
        )
    )


def _content(token: str | Mapping) -> str:
    """A token's text; its description may hold more."""
    return token if isinstance(token, str) else token["content"]


def _by_transformers(folder: pathlib.Path) -> LoadedTokenizer:
    transformers = _transformers()
    try:
        loaded = transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except (OSError, ValueError, ImportError) as failure:
        raise EndxError(f"{folder} holds no tokenizer that transformers can load: {_first_line(failure)}") from None

    def save(target: pathlib.Path) -> None:
        loaded.save_pretrained(str(target))

    backend = getattr(loaded, "backend_tokenizer", None)
    if backend is not None:
        return _fast(backend, loaded.pad_token_id, len(loaded), save, loaded.truncation_side)

    def encode(texts: Sequence[str], length: int) -> tuple[Iterable[list[int]], int]:
        whole = loaded(list(texts))["input_ids"]
        cut = loaded(list(texts), truncation=True, max_length=length)["input_ids"]
        return cut, sum(len(ids) > length for ids in whole)

    return LoadedTokenizer(encode, loaded.pad_token_id, len(loaded), save, state=None)


def _fast(
    backend: "tokenizers.Tokenizer", pad_id: int | None, size: int, save: Callable[[pathlib.Path], None], side: str
) -> LoadedTokenizer:
    """A tokenizer of the tokenizers library; texts are cut at `side`."""
    lock = threading.Lock()  # the length is the backend's own, and it refuses to be changed while it works

    def encode(texts: Sequence[str], length: int) -> tuple[Iterable[list[int]], int]:
        with lock:
            backend.no_padding()
            backend.enable_truncation(length, direction=side)
            # `fast`: without each token's place in the text, which takes a third of the time.
            try:
                encodings = backend.encode_batch_fast(list(texts))
            except TypeError:  # what Python takes for text and Unicode does not
                encodings = backend.encode_batch_fast([_well_formed(text) for text in texts])
        cut = sum(len(encoding) == length and bool(encoding.overflowing) for encoding in encodings)
        return (encoding.ids for encoding in encodings), cut

    def state() -> str:
        with lock:
            return f"{side} {backend.encode_special_tokens} {_state(backend)}"

    return LoadedTokenizer(encode, pad_id, size, save, state)


def _well_formed(text: str) -> str:
    """The text with U+FFFD for halves of surrogate pairs, which JSON's escapes can leave in a string."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _state(backend: "tokenizers.Tokenizer") -> str:
    """The contents of a `tokenizer.json`; padding and length are ours to choose and stay out."""
    backend.no_padding()
    backend.no_truncation()
    return backend.to_str()


def _transformers():
    """Imports transformers without its advice on frameworks that are not installed and not needed."""
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    import logging

    logging.getLogger("transformers").setLevel(logging.ERROR)
    import transformers

    return transformers


def _first_line(failure: Exception) -> str:
    return str(failure).strip().splitlines()[0] if str(failure).strip() else type(failure).__name__
