"""Gemma 3 (Kamath et al. 2025), text only, also as EmbeddingGemma (Vera et al. 2025), which is bidirectional.

Differences from Llama: norms of queries and keys and after the sublayers, which multiply by 1 + their parameter; scaled
token embeddings; five layers with windows and rotations of their own for each that attends to the whole text.
"""

import dataclasses
from collections.abc import Mapping
from typing import Self

from endx_jax.encoders.architecture import GLOBAL, LOCAL, Names, read_layer_types, read_ropes
from endx_jax.encoders.llama import INSIDE, LLAMA, NAMES, LlamaConfig, read_window
from endx_jax.models.config_keys import bool_key, enum_key, float_key, int_key, read_key
from endx_jax.models.layers import ACTIVATIONS
from endx_jax.models.transformer_config import ABSENT, FALSE, SUPPORTED, LayerKind

# Bases of the rotations by type of layer: key in older files, and default.
BASES = {LOCAL: ("rope_local_base_freq", 10_000.0), GLOBAL: ("rope_theta", 1_000_000.0)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gemma3Config(LlamaConfig):
    """Config of Gemma 3. A bidirectional layer attends to half of `sliding_window` tokens on either side."""

    supported = SUPPORTED | {"attn_logit_softcapping": ABSENT, "is_causal": (True, None), "mlp_bias": FALSE}

    head_width: int | None = int_key("head_dim", default=256)
    activation: str = enum_key("hidden_activation", choices=ACTIVATIONS, default="gelu_pytorch_tanh")
    score_width: float | None = float_key("query_pre_attn_scalar", default=256.0, least=1e-3, most=1e6)
    head_norm: bool = True
    result_norm: bool = True
    embedding_scale: bool = True
    from_one: bool = True

    @classmethod
    def from_hugging_face(cls, config: Mapping, where: object = "config.json") -> Self:
        """Converts the contents of a `config.json` of transformers 4 or 5."""
        base = super().from_hugging_face(config, where)
        bidirectional = read_key(config, where, bool_key("use_bidirectional_attention", default=False))
        period = read_key(config, where, int_key("sliding_window_pattern", "_sliding_window_pattern", default=6))
        window = read_window(config, not bidirectional, where)
        if bidirectional and window is not None:
            window //= 2
        default = [GLOBAL if (n + 1) % period == 0 else LOCAL for n in range(base.layers)]
        types = read_layer_types(config, default, where)
        ropes = read_ropes(config, BASES, [GLOBAL], base.head, where)
        kinds = tuple(LayerKind(ropes[kind], window if kind == LOCAL else None) for kind in types)
        return dataclasses.replace(base, layer_kinds=kinds, causal=not bidirectional)

    @staticmethod
    def read_rope(config: Mapping, head_width: int, where: object) -> None:
        """Returns None, since each layer has its own rotary positions."""


GEMMA3_NAMES = Names(
    NAMES.outside,
    NAMES.layer,
    INSIDE
    | {
        "attention_result_norm": "post_attention_layernorm",
        "mlp_norm": "pre_feedforward_layernorm",
        "mlp_result_norm": "post_feedforward_layernorm",
    },
)

GEMMA3 = dataclasses.replace(
    LLAMA, config=Gemma3Config, transformers_class="Gemma3TextModel", names=lambda config: GEMMA3_NAMES
)
