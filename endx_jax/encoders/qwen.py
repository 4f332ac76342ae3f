"""Qwen2 (Yang et al. 2024), Llama with biases in attention, and Qwen3 (2025), Llama with norms of queries and keys."""

import dataclasses
from collections.abc import Mapping
from typing import Self

from endx_jax.encoders.layer_types import GLOBAL, LOCAL, read_layer_types
from endx_jax.encoders.llama import LLAMA, LlamaConfig, read_window
from endx_jax.models.config_keys import HuggingFaceConfig, flag, whole
from endx_jax.models.transformer import LayerKind, only


@dataclasses.dataclass(frozen=True)
class _Windows(HuggingFaceConfig):
    """Keys of `config.json` from which the windows follow."""

    used: bool = flag("use_sliding_window", default=False)
    first: int = whole("max_window_layers", default=28, least=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Qwen3Config(LlamaConfig):
    """Config of Qwen3. The layers from `max_window_layers` on may have windows."""

    ONLY = only(mlp_bias=(False, None))

    head_norm: bool = True

    @classmethod
    def from_hugging_face(cls, config: Mapping, where: object = "config.json") -> Self:
        """Converts the contents of a `config.json`."""
        found, windows = super().from_hugging_face(config, where), _Windows.from_hugging_face(config, where)
        window = read_window(config, found.causal, where) if config.get("sliding_window", 1) and windows.used else None
        default = [LOCAL if window and n >= windows.first else GLOBAL for n in range(found.layers)]
        types = read_layer_types(config, default, where)
        kinds = tuple(LayerKind(found.rope, window if kind == LOCAL else None) for kind in types)
        return dataclasses.replace(found, layer_kinds=kinds)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Qwen2Config(Qwen3Config):
    """Config of Qwen2, which has biases of queries, keys and values."""

    head_norm: bool = False

    @classmethod
    def from_hugging_face(cls, config: Mapping, where: object = "config.json") -> Self:
        """Converts the contents of a `config.json`."""
        return dataclasses.replace(super().from_hugging_face(config, where), biases=("query", "key", "value"))


QWEN3 = dataclasses.replace(LLAMA, config=Qwen3Config, transformers_class="Qwen3Model")
QWEN2 = dataclasses.replace(LLAMA, config=Qwen2Config, transformers_class="Qwen2Model")
