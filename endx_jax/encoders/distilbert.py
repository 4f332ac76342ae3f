"""DistilBERT (Sanh et al. 2019): BERT without token types, with keys and names of its own."""

import dataclasses

from endx_jax.encoders import bert
from endx_jax.encoders.architecture import Architecture, Names
from endx_jax.models.config_keys import MOST_LAYERS, choice, fraction, whole
from endx_jax.models.layers import ACTIVATIONS
from endx_jax.models.transformer import TransformerConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistilBertConfig(TransformerConfig):
    """Config of DistilBERT."""

    width: int = whole("dim")
    layers: int = whole("n_layers", most=MOST_LAYERS)
    heads: int = whole("n_heads")
    mlp_width: int = whole("hidden_dim")
    position_table: bool = True
    activation: str = choice("activation", choices=ACTIVATIONS, default="gelu")
    norm_epsilon: float = 1e-12
    dropout: float = fraction("dropout", default=0.1)
    attention_dropout: float = fraction("attention_dropout", default=0.1)


NAMES = Names(
    outside=bert.NAMES.outside,
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

DISTILBERT = Architecture(DistilBertConfig, "DistilBertModel", lambda config: NAMES, prefixes=("distilbert.",))
