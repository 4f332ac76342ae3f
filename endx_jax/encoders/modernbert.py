"""ModernBERT (Warner et al. 2024): pre-norm, rotary positions, alternating local and global attention, gated GELU."""

import dataclasses
from collections.abc import Mapping
from typing import Self

from endx_jax.encoders.architecture import GLOBAL, LOCAL, Architecture, Names, read_biases, read_layer_types, read_ropes
from endx_jax.models.config_keys import MOST_TOKENS, bool_key, enum_key, float_key, int_key, read_key
from endx_jax.models.layers import ACTIVATIONS
from endx_jax.models.transformer_config import SUPPORTED, LayerKind, TransformerConfig

# Bases of the rotations by type of layer: key in older files, and default.
BASES = {LOCAL: ("local_rope_theta", 10_000.0), GLOBAL: ("global_rope_theta", 160_000.0)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModernBertConfig(TransformerConfig):
    """Config of ModernBERT. A token attends to half of `local_attention` tokens on either side in local layers."""

    # Positions are always rotary; the files say absolute (ModernBERT) or sans_pos (mmBERT, Granite).
    supported = SUPPORTED | {"position_embedding_type": ()}

    gated: bool = True
    biases: tuple[str, ...] = ()
    pre_norm: bool = True
    activation: str = enum_key("hidden_activation", choices=ACTIVATIONS, default="gelu")
    norm_bias: bool = bool_key("norm_bias", default=False)
    norm_epsilon: float = float_key("norm_eps", default=1e-5)
    dropout: float = float_key("mlp_dropout", default=0.0)
    hidden_dropout: bool = True
    attention_dropout: float = float_key("attention_dropout", default=0.0)
    pad_id: int = int_key("pad_token_id", default=50283, least=-1, most=MOST_TOKENS)

    @classmethod
    def from_hugging_face(cls, config: Mapping, where: object = "config.json") -> Self:
        """Converts the contents of a `config.json` of transformers 4 or 5."""
        base = super().from_hugging_face(config, where)
        window = read_key(config, where, int_key("local_attention", default=128, least=2))
        period = read_key(config, where, int_key("global_attn_every_n_layers", default=3))
        default = [GLOBAL if n % period == 0 else LOCAL for n in range(base.layers)]
        types = read_layer_types(config, default, where)
        ropes = read_ropes(config, BASES, [LOCAL, GLOBAL], base.head, where)
        kinds = [
            LayerKind(ropes[kind], window // 2 if kind == LOCAL else None, attention_norm=n > 0)
            for n, kind in enumerate(types)
        ]
        return dataclasses.replace(base, layer_kinds=tuple(kinds), biases=read_biases(config, where))


NAMES = Names(
    outside={
        "token_embedder": "embeddings.tok_embeddings",
        "encoder/norm": "embeddings.norm",
        "encoder/final_norm": "final_norm",
    },
    layer="layers.{n}",
    inside={
        "attention_norm": "attn_norm",
        "attention/query attention/key attention/value": "attn.Wqkv",
        "attention/output": "attn.Wo",
        "mlp_norm": "mlp_norm",
        "mlp_gate mlp_up": "mlp.Wi",
        "mlp_down": "mlp.Wo",
    },
)

MODERNBERT = Architecture(ModernBertConfig, "ModernBertModel", lambda config: NAMES, prefixes=("model.",))
