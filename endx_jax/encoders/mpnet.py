"""MPNet (Song et al. 2020): BERT with positions after the padding id and a relative-position bias as in T5."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import ClassVar

from endx_jax.encoders import bert
from endx_jax.encoders.architecture import Architecture, Names
from endx_jax.models.transformer import TransformerConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class MPNetConfig(TransformerConfig):
    """Config of MPNet. Its class in transformers has 32 buckets and the padding id 1, whatever `config.json` says."""

    ONLY: ClassVar[Mapping[str, Sequence]] = {
        **TransformerConfig.ONLY,
        "pad_token_id": (1,),
        "relative_attention_num_buckets": (32,),
    }

    position_table: bool = True
    after_padding: bool = True
    pad_id: int = 1
    buckets: int = 32


NAMES = Names(
    outside={**bert.NAMES.outside, "encoder/relative_position_bias": "encoder.relative_attention_bias"},
    layer=bert.NAMES.layer,
    inside={
        **bert.NAMES.inside,
        "attention/query": "attention.attn.q",
        "attention/key": "attention.attn.k",
        "attention/value": "attention.attn.v",
        "attention/output": "attention.attn.o",
        "attention_norm": "attention.LayerNorm",
    },
)

MPNET = Architecture(MPNetConfig, "MPNetModel", lambda config: NAMES, prefixes=("mpnet.",), pooler="pooler.dense")
