"""Files of tokenizers, which transformers reads once, and from then on the tokenizers library alone."""

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import json
import logging
import os
import pathlib
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from endx_jax import json_files
from endx_jax.errors import EndxError, first_line
from endx_jax.files import cache_folder, replacing, sha256_of

# Folder of the states of tokenizers.
STATES = "~/.cache/endx_jax/tokenizers"
# Files that may affect a tokenizer.
FILES = ("*.json", "*.txt", "*.model")
SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "mask_token")
# The tokenizers library uses memory for each unused id below the largest when it writes a tokenizer.
LARGEST_ID = 10_000_000
# Classes that `AutoTokenizer` would load as well, but after importing PyTorch where that is installed.
NAMED_CLASSES = ("BertTokenizer", "BertTokenizerFast", "PreTrainedTokenizerFast", "TokenizersBackend")
# Exceptions that transformers raises for broken files, since it checks few values before it uses them.
BROKEN = (OSError, ValueError, ImportError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError)
_importing = threading.Lock()  # transformers replaces itself in sys.modules while it is imported


@dataclasses.dataclass(frozen=True)
class ReadTokenizer:
    """A tokenizer of a folder.

    Attributes:
      backend: tokenizer of the tokenizers library; None for one that is written in Python.
      special: special tokens and their ids, by name, such as `pad_token`; without those that are not set.
      truncation_side: side at which texts are truncated, `right` or `left`.
    """

    backend: Any
    special: Mapping[str, tuple[str, int]]
    truncation_side: str


def read_tokenizer(folder: pathlib.Path) -> ReadTokenizer:
    """Reads the tokenizer of a folder as transformers does, whose import takes longer than reading most models.

    The state of its tokenizer is therefore kept in the cache, under a hash of the files and the libraries' versions.

    Raises:
      EndxError: the folder holds no usable tokenizer.
    """
    kept = cache_folder(STATES) / f"{_key(folder)}.json"
    with contextlib.suppress(EndxError), refusing_broken(kept, *BROKEN):  # there is none, or it is damaged
        return _from_state(json_files.read_json_file(kept))
    loaded = load_with_transformers(folder)
    special = {name: getattr(loaded, name) for name in SPECIAL}
    special = {
        name: (str(token), getattr(loaded, f"{name}_id")) for name, token in special.items() if token is not None
    }
    if not loaded.is_fast:
        return ReadTokenizer(None, special, loaded.truncation_side)
    backend = loaded.backend_tokenizer
    with refusing_broken(folder, *BROKEN):
        forget_length(backend)  # files may pad texts to a length beyond the memory
        state = {
            "backend": backend.to_str(),
            "encode_special_tokens": backend.encode_special_tokens,  # which the backend's text leaves out
            "special": special,
            "truncation_side": loaded.truncation_side,
        }
    with contextlib.suppress(OSError, EndxError), replacing(kept) as stream:  # the cache may not be writable
        json.dump(state, stream)
    return _from_state(state)


def forget_length(backend: Any) -> None:
    """Resets the settings of padding and truncation, which are part of a tokenizer and of its file."""
    backend.no_padding()
    backend.no_truncation()


def _from_state(state: Mapping[str, Any]) -> ReadTokenizer:
    import tokenizers

    backend = tokenizers.Tokenizer.from_str(state["backend"])
    backend.encode_special_tokens = state["encode_special_tokens"]
    special = {name: (token, id_) for name, (token, id_) in state["special"].items()}
    return ReadTokenizer(backend, special, state["truncation_side"])


def _key(folder: pathlib.Path) -> str:
    """Returns a hash of the files of a folder that may affect its tokenizer, and of the libraries that read it."""
    files = sorted(file for pattern in FILES for file in folder.glob(pattern) if file.is_file())
    versions = [importlib.metadata.version(library) for library in ("tokenizers", "transformers")]
    return hashlib.sha256(repr([versions, [(file.name, sha256_of(file)) for file in files]]).encode()).hexdigest()


@contextlib.contextmanager
def refusing_broken(folder: pathlib.Path, *further: type[Exception]) -> Iterator[None]:
    """Context that raises EndxError in place of `further` exceptions and those of the tokenizers library.

    The library raises plain `Exception`, or `PanicException`, a `BaseException`, if its Rust code panics.
    """
    try:
        yield
    except BaseException as failure:
        bare = type(failure) is Exception or type(failure).__name__ == "PanicException"
        if isinstance(failure, EndxError) or not (bare or isinstance(failure, further)):
            raise
        missing = isinstance(failure, ImportError)  # of a package, such as fugashi for Japanese
        what = "a tokenizer that can't be loaded" if missing else "no tokenizer that can be used"
        raise EndxError(f"{folder} holds {what}: {first_line(failure)}") from None


def read_specification(file: pathlib.Path) -> dict:
    """Reads a `tokenizer.json` under limits, before a library does.

    Raises:
      EndxError: the file can't be read, or an id is negative or above `LARGEST_ID`.
    """
    spec = json_files.read_json_file(file)
    model = json_files.as_object(spec.get("model") or {}, f"{file}: 'model'")
    words = model.get("vocab")
    for word, id_ in words.items() if isinstance(words, dict) else ():
        if type(id_) is not int or not 0 <= id_ <= LARGEST_ID:  # formatting messages for all words would be slow
            json_files.as_whole(id_, f"{file}: the id of {json_files.shown(word)}", most=LARGEST_ID)
    for token in json_files.as_list(spec.get("added_tokens") or [], f"{file}: 'added_tokens'"):
        id_ = json_files.value(token, "id", f"{file}: an added token")
        json_files.as_whole(id_, f"{file}: the id of an added token", most=LARGEST_ID)
    return spec


def load_with_transformers(folder: pathlib.Path) -> Any:
    """Loads a tokenizer of transformers, imported here since that takes one to two seconds."""
    if (folder / "tokenizer.json").is_file():
        read_specification(folder / "tokenizer.json")
    for file in folder.glob("*.model"):
        json_files.check_contents(file)
    name = json_files.read_optional(folder / "tokenizer_config.json").get("tokenizer_class")
    # Suppresses the warning about frameworks that are not installed.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    with _importing:
        import transformers

        with refusing_broken(folder, *BROKEN):
            kind = getattr(transformers, name) if name in list(NAMED_CLASSES) else transformers.AutoTokenizer
            return kind.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
