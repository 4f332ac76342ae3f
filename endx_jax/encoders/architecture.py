"""Description of an encoder family: its config, types of layers, and the names of its weights in checkpoints.

A table of names maps our modules to those of transformers, and is used to load and to write checkpoints. A row maps a
module with all its parameters:

- `"attention/query": "attention.self.query"`: the matrix and, if there is one, the bias. Norms and tables alike.
- `"attention/query attention/key attention/value": "attn.Wqkv"`: one stored tensor holds equal parts of several.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from endx_jax import json_files
from endx_jax.errors import EndxError
from endx_jax.models.config_keys import bool_key, read_key
from endx_jax.models.layers import Rope
from endx_jax.models.static import StaticConfig
from endx_jax.models.transformer_config import MLP, PROJECTIONS, TransformerConfig

EncoderConfig = TransformerConfig | StaticConfig

# Names in PyTorch of the parameters of a module, and of a table that is a parameter itself.
LEAVES = {"": "weight", "/kernel": "weight", "/scale": "weight", "/embedding": "weight", "/bias": "bias"}
# Types of layers in `layer_types` of a `config.json`: attention within a window, and to the whole text.
LOCAL, GLOBAL = "sliding_attention", "full_attention"
_LAYER = re.compile(r"encoder/layers_(\d+)/")


class Names(NamedTuple):
    """Names of modules: ours, separated by spaces where one of theirs holds several, to theirs.

    Attributes:
      outside: names of modules outside of the layers, by path in the tower.
      layer: name of a layer, with `{n}` for its number.
      inside: names of modules in a layer.
    """

    outside: Mapping[str, str]
    layer: str = ""
    inside: Mapping[str, str] = {}


class TensorRule(NamedTuple):
    """Tensor of a checkpoint and the parameters that it holds.

    Attributes:
      theirs: name in the checkpoint.
      ours: paths in the tower's parameters, joined by `/`; several are equal parts of the tensor's first axis.
      transpose: transposes the matrix: [out, in] in PyTorch's linear layers, [in, out] in ours.
    """

    theirs: str
    ours: tuple[str, ...]
    transpose: bool = False


@dataclasses.dataclass(frozen=True)
class Architecture:
    """Encoder family.

    Attributes:
      config: reads `config.json`.
      transformers_class: class of transformers that reads an export; empty: none.
      names: function (config) -> names of the weights.
      prefixes: prefixes of tensor names in checkpoints with task heads.
      older_spellings: old suffixes of tensor names, mapped to the suffixes in `names`.
      pooler: linear layer that the class of transformers has and embeddings don't use; empty: none.
      exported_type: `model_type` of an export, whose `config.json` is written anew, for families that the hub has in a
        notation of its own; empty: an export has the contents that were read.
    """

    config: type[TransformerConfig] | type[StaticConfig]
    transformers_class: str
    names: Callable[[Any], Names]
    prefixes: tuple[str, ...] = ()
    older_spellings: Mapping[str, str] = dataclasses.field(default_factory=dict)
    pooler: str = ""
    exported_type: str = ""

    def rules(self, config: EncoderConfig, parameters: Iterable[str]) -> Iterator[TensorRule]:
        """Yields the rules of parameters, given by their paths in a tower, in the order of the table.

        Raises:
          KeyError: a parameter is in no row of the table.
        """
        names, left = self.names(config), dict.fromkeys(parameters)
        layers = sorted({int(match[1]) for path in left if (match := _LAYER.match(path))})
        rows = dict(names.outside)
        for n in layers:
            for ours, theirs in names.inside.items():
                modules = " ".join(f"encoder/layers_{n}/{module}" for module in ours.split())
                rows[modules] = f"{names.layer.format(n=n)}.{theirs}"
        for ours, theirs in rows.items():
            for leaf, their_leaf in LEAVES.items():
                paths = tuple(module + leaf for module in ours.split())
                if paths[0] in left:
                    yield TensorRule(f"{theirs}.{their_leaf}", paths, transpose=leaf == "/kernel")
                    for path in paths:
                        del left[path]
        if left:
            raise KeyError(f"no row of the table of names has {', '.join(left)}")


def read_biases(config: Mapping, where: object) -> tuple[str, ...]:
    """Returns the names of the layers' linear maps with a bias, by `attention_bias` and `mlp_bias`."""
    attention, mlp = (read_key(config, where, bool_key(name, default=False)) for name in ("attention_bias", "mlp_bias"))
    return PROJECTIONS * attention + MLP * mlp


def read_layer_types(config: Mapping, default: Sequence[str], where: object) -> Sequence[str]:
    """Returns the type of each layer, `LOCAL` or `GLOBAL`; `default` has one for each."""
    types = config.get("layer_types")
    if types is None:
        return default
    types = json_files.as_list(types, f"{where}: 'layer_types'")
    if len(types) != len(default) or not all(kind in [LOCAL, GLOBAL] for kind in types):
        valid = f"one of {LOCAL}, {GLOBAL} for each of the {len(default)} layers"
        raise EndxError(f"{where}: layer_types is {json_files.shown(types)}; it must name {valid}")
    return types


def rope_parameters(config: Mapping) -> object:
    """Returns the rotary parameters of all layers of a `config.json`; as in transformers, `rope_scaling` goes first."""
    return config.get("rope_scaling") or config.get("rope_parameters")


def read_ropes(
    config: Mapping, bases: Mapping[str, tuple[str, float]], scaled: Sequence[str], head_width: int, where: object
) -> dict[str, Rope]:
    """Returns the rotary positions by type of layer, which newer files have as `rope_parameters` by type.

    `bases` has the key of the base in older files, and its default, by type; their `rope_scaling` is for the types in
    `scaled`. As in transformers, a file may have both, and the values of `rope_scaling` are used.
    """
    stated = json_files.as_object(config.get("rope_parameters") or {}, f"{where}: 'rope_parameters'")
    scaling = json_files.as_object(config.get("rope_scaling") or {}, f"{where}: 'rope_scaling'")
    ropes = {}
    for kind, (key, default) in bases.items():
        own = json_files.as_object(stated.get(kind) or {}, f"{where}: the rotary parameters of {kind}")
        parameters = own | (scaling if kind in scaled else {})
        base = default if config.get(key) is None else config[key]
        ropes[kind] = Rope.read(parameters, base, head_width, f"{where}: {kind}")
    return ropes
