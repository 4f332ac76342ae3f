"""BERT of GTE v1.5 and gte-multilingual (Zhang et al. 2024), `new` on the hub: rotary positions and a gated MLP."""

import dataclasses
from collections.abc import Mapping
from typing import Self

from endx_jax.encoders import bert
from endx_jax.encoders.architecture import Architecture, Names, rope_parameters
from endx_jax.models.config_keys import float_key, int_key
from endx_jax.models.layers import Rope
from endx_jax.models.transformer_config import FALSE, PROJECTIONS, SUPPORTED, TransformerConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class GteConfig(TransformerConfig):
    """Config of GTE's BERT; gte-base-en-v1.5 has no token types."""

    supported = SUPPORTED | {
        "position_embedding_type": ("rope", "absolute", None),
        "layer_norm_type": ("layer_norm", None),
        "logn_attention_scale": FALSE,
        "pack_qkv": (True, None),
    }

    token_types: int = int_key("type_vocab_size", default=1, least=0)
    gated: bool = True
    biases: tuple[str, ...] = (*PROJECTIONS, "mlp_down")
    hidden_dropout: bool = True
    attention_dropout: float = float_key("attention_probs_dropout_prob", default=0.0)

    @classmethod
    def from_hugging_face(cls, config: Mapping, where: object = "config.json") -> Self:
        """Converts the contents of a `config.json` with `model_type` `gte` or `new`."""
        base = super().from_hugging_face(config, where)
        default = 10_000.0 if config.get("model_type") == "new" else 160_000.0
        rope = Rope.read(rope_parameters(config), config.get("rope_theta", default), base.head, where)
        return dataclasses.replace(base, rope=rope)


NAMES = Names(
    outside=bert.NAMES.outside,
    layer="encoder.layer.{n}",
    inside={
        "attention/query attention/key attention/value": "attention.qkv_proj",
        "attention/output": "attention.o_proj",
        "attention_norm": "attn_ln",
        "mlp_up mlp_gate": "mlp.up_gate_proj",
        "mlp_down": "mlp.down_proj",
        "mlp_norm": "mlp_ln",
    },
)

GTE = Architecture(GteConfig, "GteModel", lambda config: NAMES, prefixes=("new.", "gte."), exported_type="gte")
