"""Identity of a model: a hash of everything that affects embeddings, which an index stores."""

import dataclasses
import hashlib
from collections.abc import Mapping

import jax
import numpy as np

from endx_jax.data.tokenization import TextProcessor
from endx_jax.models.dual_encoder import SIDES, DualEncoder
from endx_jax.parallel.sharding import whole

# Fields of modules and of their configs that decide about training or cost, and about no embedding.
WITHOUT_EFFECT = frozenset(
    {"dropout", "attention_dropout", "initializer_range", "dtype", "remat", "scan_layers", "parent", "name"}
)

# Parts of towers that came later: where a tower has none, it is what it was before there were any.
LATER = frozenset({"head", "token_weights", "layer_weights"})


def model_identity(model: DualEncoder, params: dict, processors: Mapping[str, TextProcessor]) -> str:
    """Returns the sha256 of all that affects embeddings: parameters, towers, tokenizers, prompts, lengths.

    Parameter sharing, the precision of the computation and library versions are not included: an index that was encoded
    on an accelerator can be searched on a CPU, with other versions of libraries, and with exports of the model.

    Args:
      model: both towers.
      params: of the towers; read from the devices an array at a time. If they are split over several processes, all of
        them have to call this.
      processors: text processors of each side.
    """
    digest, parameters = hashlib.sha256(b"endx_jax model 1"), ""
    apart = SIDES if set(params) - {"shared"} else SIDES[:1]  # where all is shared it is hashed once
    for side in SIDES:
        processor = processors[side]
        about = (side, describe(model.tower(side)), processor.prompt, processor.length)
        parameters = _hash(model.tower_params(params, side)) if side in apart else parameters
        digest.update(repr((*about, processor.tokenizer.fingerprint, parameters)).encode())
    return digest.hexdigest()


def _hash(groups: Mapping) -> str:
    """Returns the sha256 of a tower's parameters."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(groups):
        values = whole(leaf)
        digest.update(repr((jax.tree_util.keystr(path), values.shape, values.dtype.name)).encode())
        digest.update(np.ascontiguousarray(values).data)
    return digest.hexdigest()


def describe(part: object) -> object:
    """Describes the computation of a tower, without parameters, as tuples and plain values."""
    if dataclasses.is_dataclass(part):  # as Flax's modules are
        values = {f.name: getattr(part, f.name) for f in dataclasses.fields(part) if f.name not in WITHOUT_EFFECT}
        kept = {name: value for name, value in values.items() if value is not None or name not in LATER}
        return (type(part).__name__, *((name, describe(value)) for name, value in kept.items()))
    return getattr(part, "__name__", part)  # poolings without parameters are functions
