"""The encoder architectures that checkpoints can be read into, by the `model_type` of their `config.json`."""

import dataclasses
from collections.abc import Callable, Mapping

import flax.linen as nn
import jax.numpy as jnp

from endx_jax.models.bert import BertConfig, BertEncoder
from endx_jax.models.tower import TokenEmbedder
from endx_jax.pretrained.weights import Rule


@dataclasses.dataclass(frozen=True)
class Architecture:
    """What there is to know about one kind of encoder.

    Attributes:
      read_config: `config.json` to the config dataclass.
      embedder: (config, dtype) to the token table.
      encoder: (config, dtype, remat, scan_layers) to the encoder.
      rules: where each parameter stands in a checkpoint.
      prefixes: what task heads put before those names.
      older_spellings: how the end of a tensor's name was spelt once, to how the rules spell it.
    """

    read_config: Callable[[Mapping], BertConfig]
    embedder: Callable[[BertConfig, jnp.dtype], nn.Module]
    encoder: Callable[..., nn.Module]
    rules: tuple[Rule, ...]
    prefixes: tuple[str, ...]
    older_spellings: Mapping[str, str]


def _linear(ours: str, theirs: str) -> tuple[Rule, Rule]:
    return Rule(f"{ours}/kernel", f"{theirs}.weight", transpose=True), Rule(f"{ours}/bias", f"{theirs}.bias")


def _norm(ours: str, theirs: str) -> tuple[Rule, Rule]:
    return Rule(f"{ours}/scale", f"{theirs}.weight"), Rule(f"{ours}/bias", f"{theirs}.bias")


_BERT_LAYER, _THEIR_LAYER = "encoder/layers_{layer}", "encoder.layer.{layer}"

BERT = Architecture(
    read_config=BertConfig.from_hugging_face,
    embedder=lambda config, dtype: TokenEmbedder(config.vocab_size, config.width, dtype, config.initializer_range),
    encoder=BertEncoder,
    rules=(
        Rule("token_embedder/embedding", "embeddings.word_embeddings.weight"),
        Rule("encoder/position_embedding", "embeddings.position_embeddings.weight"),
        Rule("encoder/type_embedding", "embeddings.token_type_embeddings.weight"),
        *_norm("encoder/norm", "embeddings.LayerNorm"),
        *_linear(f"{_BERT_LAYER}/attention/query", f"{_THEIR_LAYER}.attention.self.query"),
        *_linear(f"{_BERT_LAYER}/attention/key", f"{_THEIR_LAYER}.attention.self.key"),
        *_linear(f"{_BERT_LAYER}/attention/value", f"{_THEIR_LAYER}.attention.self.value"),
        *_linear(f"{_BERT_LAYER}/attention/output", f"{_THEIR_LAYER}.attention.output.dense"),
        *_norm(f"{_BERT_LAYER}/attention_norm", f"{_THEIR_LAYER}.attention.output.LayerNorm"),
        *_linear(f"{_BERT_LAYER}/mlp_up", f"{_THEIR_LAYER}.intermediate.dense"),
        *_linear(f"{_BERT_LAYER}/mlp_down", f"{_THEIR_LAYER}.output.dense"),
        *_norm(f"{_BERT_LAYER}/mlp_norm", f"{_THEIR_LAYER}.output.LayerNorm"),
    ),
    prefixes=("bert.",),
    # Of the first BERTs, whose files on the hub still have them.
    older_spellings={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
)

ARCHITECTURES: Mapping[str, Architecture] = {"bert": BERT}
