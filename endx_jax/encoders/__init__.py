"""Encoder families, one module each: config, names of weights, and what they choose from `models.transformer`."""

from collections.abc import Mapping

from endx_jax.encoders.albert import ALBERT
from endx_jax.encoders.architecture import Architecture, EncoderConfig
from endx_jax.encoders.bert import BERT, CAMEMBERT, ELECTRA, ROBERTA, XLM_ROBERTA
from endx_jax.encoders.distilbert import DISTILBERT
from endx_jax.encoders.gte import GTE
from endx_jax.encoders.modernbert import MODERNBERT
from endx_jax.encoders.mpnet import MPNET
from endx_jax.encoders.nomic_bert import NOMIC_BERT
from endx_jax.encoders.static import STATIC
from endx_jax.encoders.t5 import MT5, T5, UMT5

# Supported encoder families by the `model_type` of their `config.json`.
ARCHITECTURES: Mapping[str, Architecture] = {
    "bert": BERT,
    "roberta": ROBERTA,
    "xlm-roberta": XLM_ROBERTA,
    "camembert": CAMEMBERT,
    "electra": ELECTRA,
    "distilbert": DISTILBERT,
    "mpnet": MPNET,
    "albert": ALBERT,
    "modernbert": MODERNBERT,
    "nomic_bert": NOMIC_BERT,
    "gte": GTE,
    "new": GTE,  # on the hub, with code of its own
    "t5": T5,
    "mt5": MT5,
    "umt5": UMT5,
    "static": STATIC,
}

__all__ = ["ARCHITECTURES", "Architecture", "EncoderConfig"]
