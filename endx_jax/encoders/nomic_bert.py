"""NomicBERT (Nussbaum et al. 2024): BERT with rotary positions and a gated MLP, without biases in its linear layers."""

import dataclasses
from collections.abc import Mapping
from typing import Self

from endx_jax.encoders.architecture import Architecture, Names, rope_parameters
from endx_jax.models.config_keys import enum_key, float_key, int_key
from endx_jax.models.layers import ACTIVATIONS, Rope
from endx_jax.models.transformer_config import ABSENT, FALSE, SUPPORTED, TransformerConfig

# Activations by the names of gated MLPs in the files of nomic-embed.
GATED = {"swiglu": "silu", "geglu": "gelu"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class NomicBertConfig(TransformerConfig):
    """Config of NomicBERT, with the keys of nomic-embed's files or those of transformers."""

    supported = (
        SUPPORTED
        | dict.fromkeys(("causal", "prenorm", "use_rms_norm", "parallel_block", "rotary_emb_interleaved"), FALSE)
        | dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"), FALSE)
        | dict.fromkeys(("rotary_emb_scale_base", "rotary_scaling_factor", "num_experts"), ABSENT)
        | {"rotary_emb_fraction": (1.0, None), "scale_attn_weights": (True, None)}
    )

    head_width: int | None = int_key("head_dim", default=None)
    token_types: int = int_key("type_vocab_size", default=2)
    activation: str = enum_key("hidden_act", "activation_function", choices=(*ACTIVATIONS, *GATED), default="silu")
    gated: bool = True
    biases: tuple[str, ...] = ()
    dropout: float = float_key("hidden_dropout_prob", "resid_pdrop", default=0.0)
    attention_dropout: float = float_key("attention_probs_dropout_prob", "attn_pdrop", default=0.0)

    @classmethod
    def from_hugging_face(cls, config: Mapping, where: object = "config.json") -> Self:
        """Converts the contents of a `config.json` in either notation."""
        base = super().from_hugging_face(config, where)
        rope = Rope.read(rope_parameters(config), config.get("rotary_emb_base", 1000.0), base.head, where)
        return dataclasses.replace(base, rope=rope, activation=GATED.get(base.activation, base.activation))


NAMES = Names(
    outside={
        "token_embedder": "embeddings.word_embeddings",
        "encoder/type_embedding": "embeddings.token_type_embeddings",
        "encoder/norm": "emb_ln",
    },
    layer="encoder.layers.{n}",
    inside={
        "attention/query attention/key attention/value": "attn.Wqkv",
        "attention/output": "attn.out_proj",
        "attention_norm": "norm1",
        "mlp_up": "mlp.fc11",
        "mlp_gate": "mlp.fc12",
        "mlp_down": "mlp.fc2",
        "mlp_norm": "norm2",
    },
)

NOMIC_BERT = Architecture(
    NomicBertConfig,
    "NomicBertModel",
    lambda config: NAMES,
    prefixes=("bert.", "nomic_bert."),
    exported_type="nomic_bert",
)
