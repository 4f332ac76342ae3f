"""BERT (Devlin et al. 2019), and encoders that differ from it in positions, embeddings or shared parameters.

Liu et al. 2019 (RoBERTa), Conneau et al. 2020 (XLM-R), Martin et al. 2020 (CamemBERT), Clark et al. 2020 (ELECTRA),
Sanh et al. 2019 (DistilBERT), Song et al. 2020 (MPNet), Lan et al. 2020 (ALBERT).
"""

import dataclasses
from collections.abc import Mapping
from typing import Self

from endx_jax.encoders.architecture import Architecture, Names
from endx_jax.models.config_keys import MOST_TOKENS, ReadKeys, enum_key, float_key, int_key
from endx_jax.models.layers import ACTIVATIONS
from endx_jax.models.transformer_config import SUPPORTED, TransformerConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class BertConfig(TransformerConfig):
    """Config of BERT: a table of positions, token types (`type_vocab_size`) and post-norm."""

    position_table: bool = True
    token_types: int = int_key("type_vocab_size", default=2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RobertaConfig(BertConfig):
    """Config of RoBERTa, whose positions begin after the padding id."""

    after_padding: bool = True
    pad_id: int = int_key("pad_token_id", default=1, least=0, most=MOST_TOKENS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ElectraConfig(BertConfig):
    """Config of ELECTRA, whose embeddings may have another width (`embedding_size`), and are projected then."""

    embedding_width: int | None = int_key("embedding_size", default=128)

    @classmethod
    def from_hugging_face(cls, config: Mapping, where: object = "config.json") -> Self:
        """Converts the contents of a `config.json`; without another width there is no projection."""
        base = super().from_hugging_face(config, where)
        return dataclasses.replace(base, embedding_width=None) if base.embedding_width == base.width else base


@dataclasses.dataclass(frozen=True, kw_only=True)
class AlbertConfig(BertConfig):
    """Config of ALBERT, whose layers share their parameters; its embeddings (`embedding_size`) are always projected."""

    supported = SUPPORTED | dict.fromkeys(("num_hidden_groups", "inner_group_num", "down_scale_factor"), (1,))

    embedding_width: int | None = int_key("embedding_size", default=128)
    activation: str = enum_key("hidden_act", choices=ACTIVATIONS, default="gelu_new")
    shared_layers: bool = True
    dropout: float = float_key("hidden_dropout_prob", default=0.0)
    attention_dropout: float = float_key("attention_probs_dropout_prob", default=0.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistilBertConfig(BertConfig):
    """Config of DistilBERT, which has no token types."""

    token_types: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class MPNetConfig(RobertaConfig):
    """Config of MPNet, with a relative-position bias as in T5 and without token types.

    Its class in transformers has 32 buckets and the padding id 1, whatever `config.json` says.
    """

    supported = SUPPORTED | {"relative_attention_num_buckets": (32,)}

    token_types: int = 0
    buckets: int = 32

    @classmethod
    def from_hugging_face(cls, config: Mapping, where: object = "config.json") -> Self:
        """Converts the contents of a `config.json`."""
        stated = ReadKeys({**config, "pad_token_id": 1}, getattr(config, "read", None))
        return super().from_hugging_face(stated, where)


NAMES = Names(
    outside={
        "token_embedder": "embeddings.word_embeddings",
        "encoder/position_embedding": "embeddings.position_embeddings",
        "encoder/type_embedding": "embeddings.token_type_embeddings",
        "encoder/norm": "embeddings.LayerNorm",
        "encoder/embedding_projection": "embeddings_project",
    },
    layer="encoder.layer.{n}",
    inside={
        "attention/query": "attention.self.query",
        "attention/key": "attention.self.key",
        "attention/value": "attention.self.value",
        "attention/output": "attention.output.dense",
        "attention_norm": "attention.output.LayerNorm",
        "mlp_up": "intermediate.dense",
        "mlp_down": "output.dense",
        "mlp_norm": "output.LayerNorm",
    },
)
DISTILBERT_NAMES = Names(
    outside=NAMES.outside,
    layer="transformer.layer.{n}",
    inside={
        "attention/query": "attention.q_lin",
        "attention/key": "attention.k_lin",
        "attention/value": "attention.v_lin",
        "attention/output": "attention.out_lin",
        "attention_norm": "sa_layer_norm",
        "mlp_up": "ffn.lin1",
        "mlp_down": "ffn.lin2",
        "mlp_norm": "output_layer_norm",
    },
)
ALBERT_NAMES = Names(
    outside={**NAMES.outside, "encoder/embedding_projection": "encoder.embedding_hidden_mapping_in"},
    layer="encoder.albert_layer_groups.0.albert_layers.{n}",
    inside={
        "attention/query": "attention.query",
        "attention/key": "attention.key",
        "attention/value": "attention.value",
        "attention/output": "attention.dense",
        "attention_norm": "attention.LayerNorm",
        "mlp_up": "ffn",
        "mlp_down": "ffn_output",
        "mlp_norm": "full_layer_layer_norm",
    },
)
MPNET_NAMES = Names(
    outside={**NAMES.outside, "encoder/relative_position_bias": "encoder.relative_attention_bias"},
    layer=NAMES.layer,
    inside={
        **NAMES.inside,
        "attention/query": "attention.attn.q",
        "attention/key": "attention.attn.k",
        "attention/value": "attention.attn.v",
        "attention/output": "attention.attn.o",
        "attention_norm": "attention.LayerNorm",
    },
)

BERT = Architecture(
    BertConfig,
    "BertModel",
    lambda config: NAMES,
    prefixes=("bert.",),
    # The first BERT checkpoints on the hub have these names.
    older_spellings={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
    pooler="pooler.dense",
)
ROBERTA = dataclasses.replace(BERT, config=RobertaConfig, transformers_class="RobertaModel", prefixes=("roberta.",))
XLM_ROBERTA = dataclasses.replace(ROBERTA, transformers_class="XLMRobertaModel")
CAMEMBERT = dataclasses.replace(ROBERTA, transformers_class="CamembertModel")
ELECTRA = dataclasses.replace(
    BERT, config=ElectraConfig, transformers_class="ElectraModel", prefixes=("electra.",), pooler=""
)
DISTILBERT = Architecture(
    DistilBertConfig, "DistilBertModel", lambda config: DISTILBERT_NAMES, prefixes=("distilbert.",)
)
ALBERT = Architecture(AlbertConfig, "AlbertModel", lambda config: ALBERT_NAMES, prefixes=("albert.",), pooler="pooler")
MPNET = Architecture(MPNetConfig, "MPNetModel", lambda config: MPNET_NAMES, prefixes=("mpnet.",), pooler="pooler.dense")
