"""Llama (Touvron et al. 2023), Mistral (Jiang et al. 2023), EuroBERT (Boizard et al. 2025), Qwen2 and Qwen3.

They are pre-norm, with RMSNorm, rotary positions, a gated MLP and grouped heads. EuroBERT is bidirectional, and so are
files with `is_causal: false`, as transformers reads them. Qwen2 (Yang et al. 2024) is Llama with biases in attention,
and Qwen3 (2025) is Llama with norms of queries and keys.
"""

import dataclasses
from collections.abc import Mapping
from typing import Self

from endx_jax import json_files
from endx_jax.encoders.architecture import (
    GLOBAL,
    LOCAL,
    Architecture,
    Names,
    read_biases,
    read_layer_types,
    rope_parameters,
)
from endx_jax.models.config_keys import bool_key, enum_key, float_key, int_key, read_key
from endx_jax.models.layers import ACTIVATIONS, Rope
from endx_jax.models.transformer_config import ABSENT, FALSE, SUPPORTED, LayerKind, TransformerConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class LlamaConfig(TransformerConfig):
    """Config of Llama. Its padding id is that of the tokenizer, as no parameter depends on it."""

    kv_heads: int | None = int_key("num_key_value_heads", default=None)
    head_width: int | None = int_key("head_dim", default=None)
    activation: str = enum_key("hidden_act", choices=ACTIVATIONS, default="silu")
    gated: bool = True
    biases: tuple[str, ...] = ()
    causal: bool = bool_key("is_causal", default=True)
    pre_norm: bool = True
    embedding_norm: bool = False
    rms: bool = True
    norm_epsilon: float = float_key("rms_norm_eps", default=1e-6)
    dropout: float = 0.0
    attention_dropout: float = float_key("attention_dropout", default=0.0)
    pad_id: int = 0  # not read: a config may have null, and rotary positions need none

    @classmethod
    def from_hugging_face(cls, config: Mapping, where: object = "config.json") -> Self:
        """Converts the contents of a `config.json` of transformers 4 or 5."""
        base, biases = super().from_hugging_face(config, where), read_biases(config, where)
        rope = cls.read_rope(config, base.head, where)
        return dataclasses.replace(base, rope=rope, biases=biases, kv_heads=base.groups)

    @staticmethod
    def read_rope(config: Mapping, head_width: int, where: object) -> Rope | None:
        """Returns the rotary positions of all layers; None if they differ."""
        base = 10_000.0 if config.get("rope_theta") is None else config["rope_theta"]
        return Rope.read(rope_parameters(config), base, head_width, where)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MistralConfig(LlamaConfig):
    """Config of Mistral, which has a window in all layers (`sliding_window`), or in none if it is null."""

    supported = SUPPORTED | {"layer_types": ABSENT, "attention_bias": FALSE, "mlp_bias": FALSE}

    @classmethod
    def from_hugging_face(cls, config: Mapping, where: object = "config.json") -> Self:
        """Converts the contents of a `config.json`."""
        base = super().from_hugging_face(config, where)
        kind = LayerKind(base.rope, read_window(config, base.causal, where))
        return dataclasses.replace(base, layer_kinds=(kind,) * base.layers)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EuroBertConfig(LlamaConfig):
    """Config of EuroBERT."""

    causal: bool = False
    norm_epsilon: float = float_key("rms_norm_eps", default=1e-5)


def read_window(config: Mapping, causal: bool, where: object) -> int | None:
    """Returns the window of `sliding_window`, as in `LayerKind`; None if it is null.

    In causal layers the token itself counts.
    """
    window = config.get("sliding_window", 4096)
    return None if window is None else json_files.as_whole(window, f"{where}: 'sliding_window'", least=2) - causal


INSIDE = {
    "attention_norm": "input_layernorm",
    "attention/query": "self_attn.q_proj",
    "attention/key": "self_attn.k_proj",
    "attention/value": "self_attn.v_proj",
    "attention/query_norm": "self_attn.q_norm",
    "attention/key_norm": "self_attn.k_norm",
    "attention/output": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "mlp_gate": "mlp.gate_proj",
    "mlp_up": "mlp.up_proj",
    "mlp_down": "mlp.down_proj",
}
NAMES = Names({"token_embedder": "embed_tokens", "encoder/norm": "norm"}, "layers.{n}", INSIDE)

LLAMA = Architecture(LlamaConfig, "LlamaModel", lambda config: NAMES, prefixes=("model.",))
MISTRAL = dataclasses.replace(LLAMA, config=MistralConfig, transformers_class="MistralModel")
EUROBERT = dataclasses.replace(LLAMA, config=EuroBertConfig, transformers_class="EuroBertModel")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Qwen3Config(LlamaConfig):
    """Config of Qwen3. The layers from `max_window_layers` on may have windows."""

    supported = SUPPORTED | {"mlp_bias": FALSE}

    head_norm: bool = True

    @classmethod
    def from_hugging_face(cls, config: Mapping, where: object = "config.json") -> Self:
        """Converts the contents of a `config.json`."""
        base = super().from_hugging_face(config, where)
        used = read_key(config, where, bool_key("use_sliding_window", default=False))
        first = read_key(config, where, int_key("max_window_layers", default=28, least=0))
        window = read_window(config, base.causal, where) if config.get("sliding_window", 1) and used else None
        default = [LOCAL if window and n >= first else GLOBAL for n in range(base.layers)]
        types = read_layer_types(config, default, where)
        kinds = tuple(LayerKind(base.rope, window if kind == LOCAL else None) for kind in types)
        return dataclasses.replace(base, layer_kinds=kinds)


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
