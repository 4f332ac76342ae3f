"""Tokenizers loaded from their files.

A tokenizer is loaded directly from `tokenizer.json` if that file determines it, otherwise with transformers, which
takes one to two seconds to import. Reading the file takes 10 ms.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from endx_jax import json_files
from endx_jax.errors import EndxError, first_line
from endx_jax.files import write_text

if TYPE_CHECKING:
    import tokenizers


JSON, CONFIG = "tokenizer.json", "tokenizer_config.json"
# The tokenizers library uses memory for each unused id below the largest when it writes a tokenizer.
LARGEST_ID = 10_000_000

# Tokenizer classes that add nothing to `tokenizer.json` but what `_is_determined` compares, with the special tokens
# that their config must name.
BERT_TOKENS = ("unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
DIRECT = {
    "BertTokenizer": BERT_TOKENS,
    "BertTokenizerFast": BERT_TOKENS,
    "PreTrainedTokenizerFast": ("pad_token",),
    "TokenizersBackend": ("pad_token",),
}
# Exceptions that transformers raises for broken files, since it checks few values before it uses them.
BROKEN = (OSError, ValueError, ImportError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError)
# Options of BERT's normalizer: name in tokenizer.json, name in the config, default in the config.
NORMALIZER = (
    ("lowercase", "do_lower_case", True),
    ("handle_chinese_chars", "tokenize_chinese_chars", True),
    ("strip_accents", "strip_accents", None),
)


@dataclasses.dataclass(frozen=True)
class LoadedTokenizer:
    """Functions of a loaded tokenizer.

    Attributes:
      encode: function (texts, length) -> (ids of each text, truncated to that length; number of truncated texts).
      pad_id: padding id; None without a padding token.
      size: largest id plus one, added and special tokens included.
      save: function that writes the tokenizer's files into a folder.
      state: function that returns a string which determines all ids; None for tokenizers written in Python.
    """

    encode: Callable[[Sequence[str], int], tuple[Iterable[list[int]], int]]
    pad_id: int | None
    size: int
    save: Callable[[pathlib.Path], None]
    state: Callable[[], str] | None


def load_tokenizer(folder: pathlib.Path) -> LoadedTokenizer:
    """Loads the tokenizer of a folder.

    Raises:
      EndxError: the folder holds no tokenizer, or a damaged one.
    """
    # Without this, the library uses only one core in a forked process.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    return _direct(folder) or _by_transformers(folder)


@contextlib.contextmanager
def refusing_broken(folder: pathlib.Path, *further: type[Exception]) -> Iterator[None]:
    """Context that converts exceptions which the tokenizers library raises for broken files to EndxError.

    The library raises plain `Exception`, or `PanicException`, a `BaseException`, if its Rust code panics.

    Args:
      folder: folder of the tokenizer.
      further: further exceptions that a broken file can cause in the block.
    """
    try:
        yield
    except BaseException as failure:
        bare = type(failure) is Exception or type(failure).__name__ == "PanicException"
        if isinstance(failure, EndxError) or not (bare or isinstance(failure, further)):
            raise
        raise EndxError(f"{folder} holds no tokenizer that can be used: {first_line(failure)}") from None


def _direct(folder: pathlib.Path) -> LoadedTokenizer | None:
    """Loads the tokenizer without transformers; returns None if transformers could load another one."""
    import tokenizers

    file = folder / JSON
    if not file.is_file():
        return None
    spec, config = read_specification(file), json_files.read_optional(folder / CONFIG)
    if not _is_determined(config, spec, folder):
        return None
    with refusing_broken(folder):
        backend = tokenizers.Tokenizer.from_str(file.read_text(encoding="utf-8"))
    pad_id = backend.token_to_id(_content(config["pad_token"], folder))

    def save(target: pathlib.Path) -> None:
        write_text(target / JSON, _state(backend))
        write_text(target / CONFIG, json.dumps(config, indent=2, ensure_ascii=False) + "\n")

    return _fast(folder, backend, pad_id, save, config.get("truncation_side", "right"))


def read_specification(file: pathlib.Path) -> dict:
    """Reads a `tokenizer.json`.

    Raises:
      EndxError: the file can't be read, or an id is negative or above `LARGEST_ID`.
    """
    spec = json_files.read(file)
    model = json_files.mapped(spec.get("model") or {}, f"{file}: 'model'")
    words = model.get("vocab")
    for word, id_ in words.items() if isinstance(words, dict) else ():
        if type(id_) is not int or not 0 <= id_ <= LARGEST_ID:  # formatting messages for all words would be slow
            json_files.whole(id_, f"{file}: the id of {json_files.shown(word)}", most=LARGEST_ID)
    for token in json_files.listed(spec.get("added_tokens") or [], f"{file}: 'added_tokens'"):
        id_ = json_files.value(token, "id", f"{file}: an added token")
        json_files.whole(id_, f"{file}: the id of an added token", most=LARGEST_ID)
    return spec


def _is_determined(config: Mapping, spec: Mapping, folder: pathlib.Path) -> bool:
    """Returns true if `tokenizer.json` alone determines the tokenizer that transformers would load from both files.

    Raises:
      EndxError: a value has a wrong type.
    """
    file, where = str(folder / JSON), f"{folder / JSON}: an added token"
    named = [_content(value, folder) for name, value in config.items() if name.endswith("_token") and value]
    decoder = json_files.mapped(config.get("added_tokens_decoder") or {}, f"{folder / CONFIG}: 'added_tokens_decoder'")
    named += [_content(token, folder) for token in decoder.values()]
    added = json_files.listed(spec.get("added_tokens") or [], f"{file}: 'added_tokens'")
    special = {
        json_files.text_at(token, "content", where, may_be_empty=True, strip=False)
        for token in added
        if json_files.value(token, "special", where, False)
    }
    normalizer = json_files.mapped(spec.get("normalizer") or {}, f"{file}: 'normalizer'")
    if config.get("truncation_side", "right") not in ("left", "right"):
        raise EndxError(f"{folder / CONFIG}: 'truncation_side' must be left or right")
    return (
        config.get("tokenizer_class") in list(DIRECT)
        and all(config.get(name) for name in DIRECT[config["tokenizer_class"]])
        and special.issuperset(named)
        and not any(config.get(name) for name in ("additional_special_tokens", "extra_special_tokens"))
        and not config.get("split_special_tokens")
        and (
            normalizer.get("type") != "BertNormalizer"
            or all(normalizer.get(ours) == config.get(theirs, default) for ours, theirs, default in NORMALIZER)
        )
    )


def _content(token: object, folder: pathlib.Path) -> str:
    """Returns the text of a token, given as a string or as an object with `content`."""
    where = f"{folder / CONFIG}: a token"
    content = token if isinstance(token, str) else json_files.value(token, "content", where)
    if not isinstance(content, str):
        raise EndxError(f"{where} must be a string, not {json_files.kind(content)}")
    return content


def _by_transformers(folder: pathlib.Path) -> LoadedTokenizer:
    transformers = _transformers()
    with refusing_broken(folder, *BROKEN):
        loaded = transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)

    def save(target: pathlib.Path) -> None:
        loaded.save_pretrained(str(target))

    backend = getattr(loaded, "backend_tokenizer", None)
    if backend is not None:
        return _fast(folder, backend, loaded.pad_token_id, save, loaded.truncation_side)

    def encode(texts: Sequence[str], length: int) -> tuple[Iterable[list[int]], int]:
        whole = loaded(list(texts))["input_ids"]
        cut = loaded(list(texts), truncation=True, max_length=length)["input_ids"]
        return cut, sum(len(ids) > length for ids in whole)

    with refusing_broken(folder, *BROKEN):
        size = 1 + max([*loaded.get_vocab().values(), *loaded([""])["input_ids"][0]], default=-1)
    return LoadedTokenizer(encode, loaded.pad_token_id, size, save, state=None)


def _fast(
    folder: pathlib.Path,
    backend: "tokenizers.Tokenizer",
    pad_id: int | None,
    save: Callable[[pathlib.Path], None],
    side: str,
) -> LoadedTokenizer:
    """Returns a tokenizer of the tokenizers library that truncates texts at `side`."""
    lock = threading.Lock()  # maximum length and normalizer are state of the backend, which only one thread may change
    normalize = _fast_normalizer(backend)

    def encode(texts: Sequence[str], length: int) -> tuple[Iterable[list[int]], int]:
        with lock, refusing_broken(folder):
            backend.no_padding()
            backend.enable_truncation(length, direction=side)
            normalized = [normalize(text) for text in texts]
            simple = [text for text in normalized if text is not None]
            others = [text for text, done in zip(texts, normalized, strict=True) if done is None]
            found = iter(_encode(backend, others)), iter(_encode(backend, simple, normalized=True) if simple else ())
        encodings = [next(found[text is not None]) for text in normalized]
        cut = sum(len(encoding) == length and bool(encoding.overflowing) for encoding in encodings)
        return (encoding.ids for encoding in encodings), cut

    def save_all(target: pathlib.Path) -> None:
        with lock:
            save(target)

    def state() -> str:
        with lock:
            return f"{side} {backend.encode_special_tokens} {_state(backend)}"

    with refusing_broken(folder):
        # The special tokens of an encoded text may have ids that are not in the vocabulary.
        size = 1 + max([*backend.get_vocab().values(), *backend.encode("").ids], default=-1)
    return LoadedTokenizer(encode, pad_id, size, save_all, state)


def _fast_normalizer(backend: "tokenizers.Tokenizer") -> Callable[[str], str | None]:
    """Returns a function that normalizes printable ASCII texts as the backend does, and returns None for others.

    BERT's normalizer handles accents, Chinese and control characters, which takes a third of the tokenizer's time. The
    function also returns None for texts with an added token such as `[MASK]`, normalized or not.
    """
    import tokenizers

    normalizer = backend.normalizer
    if not isinstance(normalizer, tokenizers.normalizers.BertNormalizer):
        return lambda text: None
    added = [token.content for token in backend.get_added_tokens_decoder().values()]
    names = {re.escape(name) for token in added for name in (token, normalizer.normalize_str(token))}
    has_added, lowercase = re.compile("|".join(names), re.IGNORECASE).search, normalizer.lowercase

    def normalize(text: str) -> str | None:
        if not text.isascii() or not text.isprintable() or has_added(text):
            return None
        return text.lower() if lowercase else text

    return normalize


def _encode(backend: "tokenizers.Tokenizer", texts: list[str], *, normalized: bool = False) -> list:
    """Encodes texts, which may be normalized already."""
    import tokenizers

    normalizer = backend.normalizer
    if normalized:
        backend.normalizer = tokenizers.normalizers.Sequence([])
    # `encode_batch_fast` omits the offsets of tokens, which would take a third of the time.
    try:
        return backend.encode_batch_fast(texts)
    except TypeError:  # half a surrogate pair in a text
        return backend.encode_batch_fast([_well_formed(text) for text in texts])
    finally:
        if normalized:
            backend.normalizer = normalizer


def _well_formed(text: str) -> str:
    """Replaces lone surrogates, which JSON escapes can leave in a string, with U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _state(backend: "tokenizers.Tokenizer") -> str:
    """Returns the contents of a `tokenizer.json`, without the settings of padding and truncation."""
    backend.no_padding()
    backend.no_truncation()
    return backend.to_str()


def _transformers():
    """Imports transformers and suppresses its warning about frameworks that are not installed."""
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    import logging

    logging.getLogger("transformers").setLevel(logging.ERROR)
    import transformers

    return transformers
