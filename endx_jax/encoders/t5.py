"""T5 (Raffel et al. 2020) with or without v1.1's gated MLP (Shazeer 2020), mT5 (Xue et al. 2021), umT5 (Chung 2023).

Differences from BERT: a relative-position bias on attention scores, shared by all layers (in umT5 one a layer), instead
of absolute positions; RMSNorm before the sublayers; no biases; no 1/sqrt(Dh) on attention scores. Activations reach
1e5, which overflows float16, so computation is in float32 or bfloat16.
"""

import dataclasses
from collections.abc import Mapping
from typing import Self

import flax.linen as nn

from endx_jax.encoders.architecture import Architecture, Names
from endx_jax.models.config_keys import float_key, int_key
from endx_jax.models.transformer_config import SUPPORTED, TransformerConfig
from endx_jax.settings import check_range

# Activations by `feed_forward_proj`.
MOST_DISTANCE = 2**16  # a bucket is computed for every distance up to the greatest; published models have 128
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_new": "gelu_new", "gated-gelu": "gelu_new", "gated-silu": "silu"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class T5Config(TransformerConfig):
    """Config of T5's encoder; T5 has keys of its own in `config.json`."""

    supported = SUPPORTED | {"feed_forward_proj": tuple(ACTIVATIONS)}

    head_width: int = int_key("d_kv")
    positions: int | None = None
    buckets: int = int_key("relative_attention_num_buckets", default=32, least=4)
    max_distance: int = int_key("relative_attention_max_distance", default=128, least=2, most=MOST_DISTANCE)
    activation: str = "gelu_new"
    gated: bool = True
    biases: tuple[str, ...] = ()
    score_width: float | None = 1.0
    pre_norm: bool = True
    embedding_norm: bool = False
    rms: bool = True
    norm_epsilon: float = float_key("layer_norm_epsilon", default=1e-6)
    hidden_dropout: bool = True
    final_dropout: bool = True
    attention_dropout: float = float_key("dropout_rate", default=0.1)
    initializer_range: float = 1.0

    @classmethod
    def from_hugging_face(cls, config: Mapping, where: object = "config.json") -> Self:
        """Converts the contents of a `config.json`, whose `feed_forward_proj` is a gate and an activation."""
        base = super().from_hugging_face(config, where)
        # Distances below a quarter of the buckets have their own; those from there on share the rest.
        limited = f"{where}: relative_attention_max_distance for {base.buckets} buckets"
        check_range(limited, base.max_distance, base.buckets // 4 + 1, MOST_DISTANCE)
        default = "gated-gelu" if config.get("model_type") in ("mt5", "umt5") else "relu"
        projection = config.get("feed_forward_proj", default)
        return dataclasses.replace(base, activation=ACTIVATIONS[projection], gated=projection.startswith("gated-"))

    @property
    def kernel_init(self) -> nn.initializers.Initializer:
        """Initializer of linear layers: normal, with a variance of 1 / inputs."""
        return nn.initializers.variance_scaling(1.0, "fan_in", "normal")


@dataclasses.dataclass(frozen=True, kw_only=True)
class UmT5Config(T5Config):
    """Config of umT5, in which each layer has its own relative-position bias."""

    bias_by_layer: bool = True


def t5_names(config: T5Config) -> Names:
    """Returns the names of T5's weights."""
    return Names(
        outside={
            "token_embedder": "shared",
            "encoder/relative_position_bias": "encoder.block.0.layer.0.SelfAttention.relative_attention_bias",
            "encoder/norm": "encoder.final_layer_norm",
        },
        layer="encoder.block.{n}",
        inside={
            "relative_position_bias": "layer.0.SelfAttention.relative_attention_bias",
            "attention/query": "layer.0.SelfAttention.q",
            "attention/key": "layer.0.SelfAttention.k",
            "attention/value": "layer.0.SelfAttention.v",
            "attention/output": "layer.0.SelfAttention.o",
            "attention_norm": "layer.0.layer_norm",
            "mlp_gate": "layer.1.DenseReluDense.wi_0",
            "mlp_up": "layer.1.DenseReluDense.wi_1" if config.gated else "layer.1.DenseReluDense.wi",
            "mlp_down": "layer.1.DenseReluDense.wo",
            "mlp_norm": "layer.1.layer_norm",
        },
    )


# Encoders saved alone may have their token table under the encoder's name.
SPELLINGS = {"encoder.embed_tokens.weight": "shared.weight"}
T5 = Architecture(T5Config, "T5EncoderModel", t5_names, older_spellings=SPELLINGS)
MT5 = dataclasses.replace(T5, transformers_class="MT5EncoderModel")
UMT5 = dataclasses.replace(T5, config=UmT5Config, transformers_class="UMT5EncoderModel")
