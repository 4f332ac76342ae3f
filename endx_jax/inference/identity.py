"""Identity of a model: a hash that is equal for models with equal embeddings, by which indexes name their model."""

import dataclasses
import hashlib
from collections.abc import Mapping

import jax
import numpy as np

from endx_jax.data.tokenization import TextProcessor
from endx_jax.models.dual_encoder import SIDES, DualEncoder
from endx_jax.models.transformer import TransformerEncoder
from endx_jax.models.transformer_config import TransformerConfig
from endx_jax.parallel.sharding import fetch_whole

# Fields of modules and of their configs that affect training or cost and no embedding.
WITHOUT_EFFECT = frozenset((
    "dropout", "attention_dropout", "initializer_range", "dtype", "product_dtype", "remat", "scan_layers", "lora",
    "parent", "name",
))  # fmt: skip

# Optional parts of towers, which are left out of the hash if they have their default.
OPTIONAL = frozenset({"head", "token_weights", "tokens", "layer_weights", "use_bias", "function"})


def model_identity(model: DualEncoder, params: dict, processors: Mapping[str, TextProcessor]) -> str:
    """Returns the hexadecimal sha256 of everything that affects embeddings.

    This is parameters, architecture, tokenizers and the options of texts. The sharing of parameters, the precision
    of the computation and the versions of libraries are not included, so an index that was encoded on an accelerator
    can be searched on a CPU and with later libraries, and the index of a run with the run's exports.

    Args:
      model: dual encoder.
      params: parameters, fetched one array at a time. If they are split over processes, every process must call this.
      processors: text processors of both sides.
    """
    digest, parameters = hashlib.sha256(b"endx_jax model 1"), ""
    hashed_sides = SIDES if set(params) - {"shared"} else SIDES[:1]  # parameters that are all shared are hashed once
    for side in SIDES:
        texts = processors[side]
        about = (side, describe_tower(model.tower(side)), texts.prompt, texts.length)
        parameters = _hash(model.tower_params(params, side)) if side in hashed_sides else parameters
        digest.update(repr((*about, texts.tokenizer.fingerprint, parameters)).encode())
    return digest.hexdigest()


def _hash(groups: Mapping) -> str:
    """Returns the sha256 of a tower's parameters."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(groups):
        values = fetch_whole(leaf)
        digest.update(repr((jax.tree_util.keystr(path), values.shape, values.dtype.name)).encode())
        digest.update(np.ascontiguousarray(values).data)
    return digest.hexdigest()


def describe_tower(part: object) -> object:
    """Describes the computation of a tower without its parameters, as nested tuples."""
    if dataclasses.is_dataclass(part):  # includes Flax modules
        fields = _chosen(part) if isinstance(part, TransformerConfig) else dataclasses.fields(part)
        values = {
            field.name: getattr(part, field.name)
            for field in fields
            if field.name not in WITHOUT_EFFECT
            and not (field.name in OPTIONAL and getattr(part, field.name) == field.default)
        }
        return (_name(part), *((name, describe_tower(value)) for name, value in values.items()))
    return getattr(part, "__name__", part)  # poolings without parameters are functions


def _name(part: object) -> str:
    """Returns the name of a module's class; of a transformer encoder that of its family, such as `BertEncoder`."""
    if isinstance(part, TransformerEncoder):
        return type(part.config).__name__.removesuffix("Config") + "Encoder"
    return type(part).__name__


def _chosen(config: TransformerConfig) -> list[dataclasses.Field]:
    """Returns the fields that are read from `config.json`, and those in which a config differs from its family.

    A part that a family does not have is left out, so that identities stay as they are when parts are added.
    """
    fields = dataclasses.fields(config)
    read = [field for field in fields if "names" in field.metadata]
    unlimited = [field for field in fields if field.name == "positions" and config.positions is None]
    other = [field for field in fields if field not in read and getattr(config, field.name) != field.default]
    return [*read, *unlimited, *other]
