"""Description of an encoder family: its config, and the names of its weights in checkpoints.

A table of names maps our modules to those of transformers, and is used to load and to write checkpoints. A row maps a
module with all its parameters:

- `"attention/query": "attention.self.query"`: the matrix and, if there is one, the bias. Norms and tables alike.
- `"attention/query attention/key attention/value": "attn.Wqkv"`: one stored tensor holds equal parts of several.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import flax.linen as nn

from endx_jax.models.static import StaticConfig
from endx_jax.models.transformer import TransformerConfig, TransformerEncoder

EncoderConfig = TransformerConfig | StaticConfig

# Names in PyTorch of the parameters of a module, and of a table that is a parameter itself.
LEAVES = {"": "weight", "/kernel": "weight", "/scale": "weight", "/embedding": "weight", "/bias": "bias"}
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
      encoder: function (config, dtype, remat=, scan_layers=) -> encoder module.
      prefixes: prefixes of tensor names in checkpoints with task heads.
      older_spellings: old suffixes of tensor names, mapped to the suffixes in `names`.
      pooler: linear layer that the class of transformers has and embeddings don't use; empty: none.
    """

    config: type[TransformerConfig] | type[StaticConfig]
    transformers_class: str
    names: Callable[[Any], Names]
    encoder: Callable[..., nn.Module] = TransformerEncoder
    prefixes: tuple[str, ...] = ()
    older_spellings: Mapping[str, str] = dataclasses.field(default_factory=dict)
    pooler: str = ""

    def rules(self, config: EncoderConfig, parameters: Iterable[str]) -> Iterator[TensorRule]:
        """Yields the rules of parameters, given by their paths in a tower, in the order of the table.

        Raises:
          KeyError: a parameter is in no row of the table.
        """
        names, left = self.names(config), dict.fromkeys(parameters)
        layers = sorted({int(found[1]) for path in left if (found := _LAYER.match(path))})
        rows = dict(names.outside)
        for n in layers:
            for ours, theirs in names.inside.items():
                own = " ".join(f"encoder/layers_{n}/{module}" for module in ours.split())
                rows[own] = f"{names.layer.format(n=n)}.{theirs}"
        for ours, theirs in rows.items():
            for leaf, their_leaf in LEAVES.items():
                paths = tuple(module + leaf for module in ours.split())
                if paths[0] in left:
                    yield TensorRule(f"{theirs}.{their_leaf}", paths, transpose=leaf == "/kernel")
                    for path in paths:
                        del left[path]
        if left:
            raise KeyError(f"no row of the table of names has {', '.join(left)}")
