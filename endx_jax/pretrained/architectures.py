"""Supported encoder architectures, by the `model_type` of their `config.json`."""

import dataclasses
from collections.abc import Callable, Mapping

import flax.linen as nn
import jax.numpy as jnp

from endx_jax.models.bert import BertConfig, BertEncoder
from endx_jax.models.static import NoEncoder, StaticConfig
from endx_jax.models.t5 import T5Config, T5Encoder
from endx_jax.models.tower import TokenEmbedder
from endx_jax.pretrained.weights import Rule

EncoderConfig = BertConfig | T5Config | StaticConfig


@dataclasses.dataclass(frozen=True)
class Architecture:
    """Description of an encoder architecture.

    Attributes:
      read_config: function (contents of `config.json`, file for messages) -> config dataclass.
      embedder: function (config, dtype) -> token embedder module.
      encoder: function (config, dtype, remat) -> encoder module.
      rules: mapping between our parameters and a checkpoint's tensors.
      prefixes: prefixes of tensor names in checkpoints with task heads.
      older_spellings: old suffixes of tensor names, mapped to the suffixes in `rules`.
    """

    read_config: Callable[[Mapping, object], EncoderConfig]
    embedder: Callable[[EncoderConfig, jnp.dtype], nn.Module]
    encoder: Callable[..., nn.Module]
    rules: tuple[Rule, ...]
    prefixes: tuple[str, ...]
    older_spellings: Mapping[str, str]


def _linear(ours: str, theirs: str) -> tuple[Rule, Rule]:
    return Rule(f"{ours}/kernel", f"{theirs}.weight", transpose=True), Rule(f"{ours}/bias", f"{theirs}.bias")


def _norm(ours: str, theirs: str) -> tuple[Rule, Rule]:
    return Rule(f"{ours}/scale", f"{theirs}.weight"), Rule(f"{ours}/bias", f"{theirs}.bias")


_LAYER, _THEIR_LAYER = "encoder/layers_{layer}", "encoder.layer.{layer}"


def _token_embedder(config: EncoderConfig, dtype: jnp.dtype) -> TokenEmbedder:
    return TokenEmbedder(config.vocab_size, config.width, dtype, config.initializer_range)


BERT = Architecture(
    read_config=BertConfig.from_hugging_face,
    embedder=_token_embedder,
    encoder=BertEncoder,
    rules=(
        Rule("token_embedder/embedding", "embeddings.word_embeddings.weight"),
        Rule("encoder/position_embedding", "embeddings.position_embeddings.weight"),
        Rule("encoder/type_embedding", "embeddings.token_type_embeddings.weight"),
        *_norm("encoder/norm", "embeddings.LayerNorm"),
        *_linear(f"{_LAYER}/attention/query", f"{_THEIR_LAYER}.attention.self.query"),
        *_linear(f"{_LAYER}/attention/key", f"{_THEIR_LAYER}.attention.self.key"),
        *_linear(f"{_LAYER}/attention/value", f"{_THEIR_LAYER}.attention.self.value"),
        *_linear(f"{_LAYER}/attention/output", f"{_THEIR_LAYER}.attention.output.dense"),
        *_norm(f"{_LAYER}/attention_norm", f"{_THEIR_LAYER}.attention.output.LayerNorm"),
        *_linear(f"{_LAYER}/mlp_up", f"{_THEIR_LAYER}.intermediate.dense"),
        *_linear(f"{_LAYER}/mlp_down", f"{_THEIR_LAYER}.output.dense"),
        *_norm(f"{_LAYER}/mlp_norm", f"{_THEIR_LAYER}.output.LayerNorm"),
    ),
    prefixes=("bert.",),
    # The first BERT checkpoints on the hub have these names.
    older_spellings={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
)

_T5_BLOCK = "encoder.block.{layer}.layer"

T5 = Architecture(
    read_config=T5Config.from_hugging_face,
    embedder=_token_embedder,
    encoder=T5Encoder,
    rules=(
        Rule("token_embedder/embedding", "shared.weight"),
        Rule(
            "encoder/relative_position_bias",
            "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        ),
        *(
            Rule(f"{_LAYER}/attention/{ours}/kernel", f"{_T5_BLOCK}.0.SelfAttention.{theirs}.weight", transpose=True)
            for ours, theirs in (("query", "q"), ("key", "k"), ("value", "v"), ("output", "o"))
        ),
        Rule(f"{_LAYER}/attention_norm/scale", f"{_T5_BLOCK}.0.layer_norm.weight"),
        *(
            Rule(f"{_LAYER}/{ours}/kernel", f"{_T5_BLOCK}.1.DenseReluDense.{theirs}.weight", transpose=True)
            for ours, theirs in (("mlp_gate", "wi_0"), ("mlp_up", "wi_1"), ("mlp_down", "wo"))
        ),
        Rule(f"{_LAYER}/mlp_norm/scale", f"{_T5_BLOCK}.1.layer_norm.weight"),
        Rule("encoder/norm/scale", "encoder.final_layer_norm.weight"),
    ),
    prefixes=(),
    older_spellings={},
)

STATIC = Architecture(
    read_config=StaticConfig.from_hugging_face,
    embedder=_token_embedder,
    encoder=lambda config, *_, **__: NoEncoder(),
    rules=(Rule("token_embedder/embedding", "embedding.weight"),),
    prefixes=(),
    older_spellings={},
)

ARCHITECTURES: Mapping[str, Architecture] = {"bert": BERT, "t5": T5, "static": STATIC}
