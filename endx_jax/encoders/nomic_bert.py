"""NomicBERT (Nussbaum et al. 2024): BERT with rotary positions and a gated MLP, without biases in its linear layers."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import ClassVar, Self

from endx_jax.encoders.architecture import Architecture, Names
from endx_jax.encoders.rope import read_rope
from endx_jax.models.config_keys import MOST_LAYERS, choice, fraction, whole
from endx_jax.models.layers import ACTIVATIONS
from endx_jax.models.transformer import TransformerConfig

# Activations by the names of gated MLPs in the files of nomic-embed.
GATED = {"swiglu": "silu", "geglu": "gelu"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class NomicBertConfig(TransformerConfig):
    """Config of NomicBERT, with the keys of nomic-embed's files or those of transformers."""

    ONLY: ClassVar[Mapping[str, Sequence]] = {
        **TransformerConfig.ONLY,
        **dict.fromkeys(
            ("causal", "prenorm", "use_rms_norm", "parallel_block", "rotary_emb_interleaved", "qkv_proj_bias"),
            (False, None),
        ),
        **dict.fromkeys(("mlp_fc1_bias", "mlp_fc2_bias"), (False, None)),
        "rotary_emb_fraction": (1.0, None),
        **dict.fromkeys(("rotary_emb_scale_base", "rotary_scaling_factor", "num_experts"), (None,)),
    }

    width: int = whole("hidden_size", "n_embd")
    layers: int = whole("num_hidden_layers", "n_layer", most=MOST_LAYERS)
    heads: int = whole("num_attention_heads", "n_head")
    head_width: int | None = whole("head_dim", default=None)
    mlp_width: int = whole("intermediate_size", "n_inner")
    positions: int | None = whole("max_position_embeddings", "n_positions")
    token_types: int = whole("type_vocab_size", default=2)
    activation: str = choice("hidden_act", "activation_function", choices=(*ACTIVATIONS, *GATED), default="silu")
    gated: bool = True
    biases: tuple[str, ...] = ()
    norm_epsilon: float = fraction("layer_norm_eps", "layer_norm_epsilon", default=1e-12)
    dropout: float = fraction("hidden_dropout_prob", "resid_pdrop", default=0.0)
    attention_dropout: float = fraction("attention_probs_dropout_prob", "attn_pdrop", default=0.0)

    @classmethod
    def from_hugging_face(cls, config: Mapping, where: object = "config.json") -> Self:
        """Converts the contents of a `config.json` in either notation."""
        found = super().from_hugging_face(config, where)
        rope = read_rope(config.get("rope_parameters"), config.get("rotary_emb_base", 1000.0), found.head, where)
        return dataclasses.replace(found, rope=rope, activation=GATED.get(found.activation, found.activation))


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

NOMIC_BERT = Architecture(NomicBertConfig, "NomicBertModel", lambda config: NAMES, prefixes=("bert.", "nomic_bert."))
