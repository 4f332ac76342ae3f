"""ALBERT (Lan et al. 2020): BERT whose layers share their parameters, with projected embeddings."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import ClassVar

from endx_jax.encoders import bert
from endx_jax.encoders.architecture import Architecture, Names
from endx_jax.models.config_keys import choice, fraction, whole
from endx_jax.models.layers import ACTIVATIONS


@dataclasses.dataclass(frozen=True, kw_only=True)
class AlbertConfig(bert.BertConfig):
    """Config of ALBERT, whose embeddings have a width of their own (`embedding_size`)."""

    ONLY: ClassVar[Mapping[str, Sequence]] = {
        **bert.BertConfig.ONLY,
        "num_hidden_groups": (1,),
        "inner_group_num": (1,),
        "down_scale_factor": (1,),
    }

    embedding_width: int | None = whole("embedding_size", default=128)
    activation: str = choice("hidden_act", choices=ACTIVATIONS, default="gelu_new")
    shared_layers: bool = True
    dropout: float = fraction("hidden_dropout_prob", default=0.0)
    attention_dropout: float = fraction("attention_probs_dropout_prob", default=0.0)


NAMES = Names(
    outside={**bert.NAMES.outside, "encoder/embedding_projection": "encoder.embedding_hidden_mapping_in"},
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

ALBERT = Architecture(AlbertConfig, "AlbertModel", lambda config: NAMES, prefixes=("albert.",), pooler="pooler")
