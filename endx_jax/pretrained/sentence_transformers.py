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
      max_length: in tokens; None where the folder does not say.
    """

    encoder: pathlib.Path
    pooling: str = "mean"
    normalize: bool = False
    max_length: int | None = None


def read_json(file: pathlib.Path):
    """Reads a JSON file; EndxError names it where it is broken."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as failure:
        raise EndxError(f"{file} can't be read as JSON: {failure}") from None


def read_head(folder: pathlib.Path) -> Head:
    """Reads `modules.json` and what it names; a folder without one is a plain encoder, pooled by the mean.

    Raises:
      EndxError: for a module or a pooling that our towers do not have.
    """
    if not (folder / "modules.json").is_file():
        return Head(encoder=folder)
    head = Head(encoder=folder)
    for module in read_json(folder / "modules.json"):
        kind, place = module["type"].rpartition(".")[2], folder / module["path"]
        if kind == "Transformer":
            settings = place / "sentence_bert_config.json"
            limit = read_json(settings).get("max_seq_length") if settings.is_file() else None
            head = dataclasses.replace(head, encoder=place, max_length=limit)
        elif kind == "Pooling":
            head = dataclasses.replace(head, pooling=_pooling(place / "config.json"))
        elif kind == "Normalize":
            head = dataclasses.replace(head, normalize=True)
        else:
            raise EndxError(
                f"{folder}/modules.json has a module {kind!r}; Transformer, Pooling and Normalize are known"
            )
    return head


def _pooling(file: pathlib.Path) -> str:
    config = read_json(file)
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
