"""What a sentence-transformers folder says beyond its encoder: pooling, normalisation, length limit."""

import dataclasses
import json
import pathlib

from endx_jax.errors import EndxError

# Their names for poolings, in both notations that their folders have had, to ours.
POOLING_FLAGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "first"}
POOLING_MODES = {"mean": "mean", "cls": "first"}


@dataclasses.dataclass(frozen=True)
class Head:
    """How token encodings become an embedding.

    Attributes:
      encoder: the folder that holds `config.json` and the weights.
      pooling: `mean` or `first`.
      normalize: whether embeddings have unit norm.
      max_length: in tokens, though the encoder may have fewer positions; None where the folder does not say.
    """

    encoder: pathlib.Path
    pooling: str = "mean"
    normalize: bool = False
    max_length: int | None = None


def read_json(file: pathlib.Path, kind: type):
    """Reads a JSON file that holds a `dict` or a `list`; EndxError names it where it is broken or holds another."""
    try:
        contents = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as failure:
        raise EndxError(f"{file} can't be read as JSON: {failure}") from None
    if not isinstance(contents, kind):
        raise EndxError(f"{file} holds a {type(contents).__name__} where a {kind.__name__} is expected")
    return contents


def read_head(folder: pathlib.Path) -> Head:
    """Reads `modules.json` and what it names; a folder without one is a plain encoder, pooled by the mean.

    Raises:
      EndxError: for a module or a pooling that our towers do not have.
    """
    head = Head(encoder=folder, max_length=_max_length(folder))
    modules = folder / "modules.json"
    if not modules.is_file():
        return head
    for module in read_json(modules, list):
        try:
            kind, place = module["type"].rpartition(".")[2], folder / module["path"]
        except (KeyError, TypeError, AttributeError):
            raise EndxError(f"{modules} has a module without a type or a path: {module!r}") from None
        if kind == "Transformer":
            head = dataclasses.replace(head, encoder=place, max_length=_max_length(place))
        elif kind == "Pooling":
            head = dataclasses.replace(head, pooling=_pooling(place / "config.json"))
        elif kind == "Normalize":
            head = dataclasses.replace(head, normalize=True)
        else:
            raise EndxError(f"{modules} has a module {kind!r}; Transformer, Pooling and Normalize are known")
    return head


def _max_length(encoder: pathlib.Path) -> int | None:
    """The length limit, which sentence-transformers kept in a file of its own before it left it to the tokenizer."""
    for name, key in (("sentence_bert_config.json", "max_seq_length"), ("tokenizer_config.json", "model_max_length")):
        if (encoder / name).is_file():
            limit = read_json(encoder / name, dict).get(key)
            if limit is not None:
                return limit
    return None


def _pooling(file: pathlib.Path) -> str:
    config = read_json(file, dict)
    if "pooling_mode" in config:
        modes = config["pooling_mode"]
        found = [modes] if isinstance(modes, str) else list(modes)
        known = POOLING_MODES
    else:
        found = [flag for flag, on in config.items() if flag.startswith("pooling_mode_") and on]
        known = POOLING_FLAGS
    if len(found) != 1 or found[0] not in known:
        raise EndxError(f"{file} asks for pooling {found}; one of {', '.join(known)} is supported")
    return known[found[0]]
