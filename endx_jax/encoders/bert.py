"""BERT (Devlin et al. 2019), and those with other positions or embeddings: RoBERTa, XLM-RoBERTa, CamemBERT, ELECTRA.

Liu et al. 2019 (RoBERTa), Conneau et al. 2020 (XLM-R), Martin et al. 2020 (CamemBERT), Clark et al. 2020 (ELECTRA).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import ClassVar, Self

from endx_jax.encoders.architecture import Architecture, Names
from endx_jax.models.config_keys import MOST_TOKENS, whole
from endx_jax.models.transformer import TransformerConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class BertConfig(TransformerConfig):
    """Config of BERT: a table of positions, token types (`type_vocab_size`) and post-norm."""

    ONLY: ClassVar[Mapping[str, Sequence]] = {
        **TransformerConfig.ONLY,
        "position_embedding_type": ("absolute", None),
        "add_cross_attention": (False, None),
    }

    position_table: bool = True
    token_types: int = whole("type_vocab_size", default=2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RobertaConfig(BertConfig):
    """Config of RoBERTa, whose positions begin after the padding id."""

    after_padding: bool = True
    pad_id: int = whole("pad_token_id", default=1, least=0, most=MOST_TOKENS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ElectraConfig(BertConfig):
    """Config of ELECTRA, whose embeddings may have another width (`embedding_size`), and are projected then."""

    embedding_width: int | None = whole("embedding_size", default=128)

    @classmethod
    def from_hugging_face(cls, config: Mapping, where: object = "config.json") -> Self:
        """Converts the contents of a `config.json`; without another width there is no projection."""
        found = super().from_hugging_face(config, where)
        return dataclasses.replace(found, embedding_width=None) if found.embedding_width == found.width else found


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
